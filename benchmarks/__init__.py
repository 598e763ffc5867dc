"""Measurements: every figure with machine, versions, commit, seed and raw samples beside it."""

from service import openmp

openmp.prepare()  # before anything here imports torch
