"""LongBench (Bai et al. 2024) and LongBench-E: the English and code tasks, from the official files.

    for sample in load(folder, "hotpotqa", samples=50): ...
    short = truncated(sample, tokenizer.encode_offsets, LIMITS["llama-3.1"])

A task has the name of its file, such as `hotpotqa` or `hotpotqa_e`.
"""

from benchmarks.quality.longbench.data import load
from benchmarks.quality.longbench.tasks import A3_TASKS, E_TASKS, KVEC_TASKS, TASKS, Task
from benchmarks.quality.longbench.truncation import LIMITS, truncated

__all__ = ["A3_TASKS", "E_TASKS", "KVEC_TASKS", "LIMITS", "TASKS", "Task", "load", "truncated"]
