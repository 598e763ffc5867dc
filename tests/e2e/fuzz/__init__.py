"""Hostile calls of the API over real sockets: `python -m tests.e2e.fuzz --help`."""
