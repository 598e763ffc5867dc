"""Hostile calls of the API over real sockets: `python -m trials.fuzz --help`."""
