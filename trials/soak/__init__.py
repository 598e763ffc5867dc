"""Endurance: memory, descriptors, and slow clients: `python -m trials.soak --help`."""
