"""Benchmarks. Every result file has the machine, versions, commit, seed and raw samples."""

from service.shared import torch_environment

torch_environment.prepare()  # before anything here imports torch
