"""A short run with a fixed seed; `python -m tests.trials.store` is the long one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_some_kills_and_damages() -> None:
    """In a process of its own, because it forks, and changes its user where it is root."""
    command = [sys.executable, "-m", "tests.trials.store", "--seed", "7"]
    command += ["--kills", "25", "--damages", "120"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-6000:]
    counts = json.loads(ran.stdout)
    assert counts["kills"] == 25 and counts["damages"] >= 120
    assert len(counts) > 35, "hardly any kind of kill or damage was drawn"
