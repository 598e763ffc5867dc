"""Measurements: every figure with machine, versions, commit, seed and raw samples beside it."""
