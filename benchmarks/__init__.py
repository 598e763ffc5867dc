"""Benchmarks. Every result file has the machine, versions, commit, seed and raw samples."""

from service.shared import openmp

openmp.prepare()  # before anything here imports torch
