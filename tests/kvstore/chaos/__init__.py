"""Kills and damages of the real tiers: `python -m tests.kvstore.chaos --help`."""
