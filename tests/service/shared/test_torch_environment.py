"""What torch's libraries read when torch is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import re
from pathlib import Path

from service.shared import torch_environment

torch_environment.prepare()
import torch


def mib():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024


torch.set_num_threads(1)
with torch.inference_mode():
    weight = torch.randn(1536, 576, dtype=torch.bfloat16)
    rows = torch.randn(480, 576, dtype=torch.bfloat16)
    for count in (480, 7):
        torch.nn.functional.linear(rows[:count], weight)
    before = mib()
    for count in range(8, 408):
        torch.nn.functional.linear(rows[:count], weight)
    print(mib() - before)
"""

CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # torch's own are 1,024


def grown(environment: dict[str, str]) -> float:
    """What the process has grown by, in MiB."""
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return float(made.stdout)


def test_products_of_ever_new_shapes_take_little_memory() -> None:
    """How large a program is differs between processors, and those of old ones need none."""
    unbounded = grown(dict.fromkeys(CAPACITIES, "1024"))
    assert grown({}) < max(unbounded / 2, 10)
