"""Endurance: memory, descriptors, and slow clients: `python -m tests.e2e.soak --help`."""
