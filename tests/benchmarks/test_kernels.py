"""The bench of the CPU kernels: every job and every way runs, and its tables have them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kernels.without import switches
from service.worker.kernels.cpu import (
    attention_pass,
    linear_few_rows,
    native,
    prefill_attention,
    rotation,
    shift,
)


@pytest.mark.slow
def test_both_tables_at_a_tiny_shape(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.kernels", "--model", "tiny", "--tokens", "64"]
    command += ["--repetitions", "2", "--threads", "1", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (record,) = (json.loads(path.read_text()) for path in tmp_path.glob("*.json"))
    seconds = record["seconds"]
    assert all(t > 0 for ways in seconds.values() for way in ways.values() for t in way["wall"])
    assert set(seconds["TPOT, 1 sequence"]) == set(switches())
    assert len(seconds) == 17 and "| TTFT, pie |" in done.stdout
    (page,) = tmp_path.glob("*.md")
    assert page.read_text() in done.stdout


def test_a_switch_takes_its_kernel_away_and_gives_it_back() -> None:
    if native.module() is None:
        pytest.skip("no kernels here")
    for module in (linear_few_rows, prefill_attention, rotation, attention_pass, shift):
        name, whole = module.__name__.rpartition(".")[2], dict(vars(module))
        with switches()[name]():
            assert module.supports is not whole["supports"] and not module.supports()
        assert dict(vars(module)) == whole
