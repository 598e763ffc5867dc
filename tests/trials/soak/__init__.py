"""Endurance: memory, descriptors, and slow clients: `python -m tests.trials.soak --help`."""
