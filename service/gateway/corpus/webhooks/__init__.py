"""Tells a URL of the operator's that a job has ended."""
