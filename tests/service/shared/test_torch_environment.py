"""What torch's libraries read when torch is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from service.shared import torch_environment

torch_environment.prepare()
import torch


def mib():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024


torch.set_num_threads(1)
weight = torch.randn(1536, 576, dtype=torch.bfloat16)
rows = torch.randn(480, 576, dtype=torch.bfloat16)
together = Barrier(THREADS)


def multiply(first):
    together.wait()
    with torch.inference_mode():
        for count in range(first, first + 400 // THREADS):
            torch.nn.functional.linear(rows[:count], weight)
    together.wait()  # what a thread keeps goes with it


torch.nn.functional.linear(rows, weight)
before = mib()
with ThreadPoolExecutor(THREADS) as pool:
    found = pool.map(multiply, range(8, 408, 400 // THREADS))
    list(found)
    print(mib() - before)
"""

CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # torch's own are 1,024


def grown(threads: int, environment: dict[str, str]) -> float:
    """What the process has grown by, in MiB."""
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("THREADS", str(threads))],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return float(made.stdout)


@pytest.mark.parametrize("threads", [1, 5])
def test_products_of_ever_new_shapes_take_little_memory(threads: int) -> None:
    """How large a program is differs between processors, and those of old ones need none."""
    unbounded = grown(threads, dict.fromkeys(CAPACITIES, "1024"))
    assert grown(threads, {}) < max(unbounded / 2, 10)
