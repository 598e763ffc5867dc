"""The GPU's table: the code behind it runs, and without a GPU it says so and measures nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

COMMAND = [sys.executable, "-m", "benchmarks.gpu", "--quick", "--repetitions", "2"]


ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "benchmarks" / "gpu" / "run.sh"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_every_line_at_a_tiny_shape(tmp_path: Path) -> None:
    done = run("--device", "cpu", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    records = [json.loads(path.read_text()) for path in tmp_path.glob("gpu_*.json")]
    figures = [figure for record in records for figure in record["figures"]]
    assert [r["shape"]["hidden_size"] for r in records] == [64] * 5
    assert len(figures) == 22 and all(f["verdict"] for f in figures)
    assert all(value > 0 for f in figures for value in f["samples"])


@pytest.mark.slow
def test_the_script_writes_each_line_when_it_is_measured(tmp_path: Path) -> None:
    """In one call, at a tiny shape; the tests that need a GPU are skipped."""
    done = script(tmp_path, "--device", "cpu")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "skipped" in done.stdout and "failed: nothing" in done.stdout
    assert len(list(tmp_path.glob("gpu_*.json"))) >= 6
    answers = json.loads((tmp_path / "gpu_answers.json").read_text())["same"]
    assert all(each["same answers"] == each["of"] == 8 for each in answers.values())


@pytest.mark.slow
def test_a_part_that_has_no_time_left_costs_only_itself(tmp_path: Path) -> None:
    done = script(tmp_path, "--device", "cpu", LIMIT_S="5")
    assert done.returncode == 1 and "table: left out" in done.stdout
    assert "failed: tests table answers" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_script_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    done = script(tmp_path)
    assert done.returncode == 2 and "torch finds no GPU here" in done.stderr
    assert not list(tmp_path.iterdir())  # nothing was measured


def script(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHON": sys.executable, **environment},
    )
