"""Benchmarks. Every result file has the machine, versions, commit, seed and raw samples."""

from kvstitch.service.shared import resources

resources.prepare_torch()  # before anything here imports torch
