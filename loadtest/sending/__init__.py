"""Sends requests on schedule and records what became of each."""
