"""Cuts texts into chunks."""
