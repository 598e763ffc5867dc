"""Hostile calls of the API over real sockets: `python -m tests.trials.fuzz --help`."""
