"""Splits texts into chunks."""
