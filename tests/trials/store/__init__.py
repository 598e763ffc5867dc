"""Kills and damages of the real tiers: `python -m tests.trials.store --help`."""
