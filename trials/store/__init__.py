"""Kills and damages of the real tiers: `python -m trials.store --help`."""
