"""The one command measures every line at a tiny shape, and writes table and samples."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.speed.lines import ORDER

pytestmark = pytest.mark.slow

REPETITIONS = 2
# Starts the real service, which is a test's own process and port.
WITH_SERVICE = "gateway"


def measure(out: Path, *lines: str) -> str:
    command = [sys.executable, "-m", "benchmarks.speed", "--quick", "--threads", "1"]
    command += ["--repetitions", str(REPETITIONS), "--out", str(out), "--only", *lines]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("speed")
    measure(out, *(line for line in ORDER if line != WITH_SERVICE))
    return out


@pytest.mark.parametrize("line", [line for line in ORDER if line != WITH_SERVICE])
def test_a_line_gives_figures_and_samples(measured: Path, line: str) -> None:
    record = json.loads((measured / f"{line}_1.json").read_text())
    assert record["samples"] and record["environment"]["commit"] and record["seed"] == 0
    assert record["shape"]["hidden_size"] == 64
    assert record["figures"]
    for figure in record["figures"]:
        assert all(math.isfinite(value) for value in figure["samples"])
        assert figure["min"] <= figure["median"] <= figure["max"]
        assert bool(figure["verdict"]) == bool(figure["target"])
        if "full prefill of" not in figure["what"]:  # shown once
            assert len(figure["samples"]) >= REPETITIONS


def test_the_table_is_written(measured: Path) -> None:
    page = (measured / "speed.md").read_text()
    assert page.count("≤ 1.05") == 9 and page.count("| ≥ 0.8 |") == 2


def test_the_gateway_is_measured_over_http(tmp_path: Path) -> None:
    assert "gateway overhead per request" in measure(tmp_path, WITH_SERVICE)
    record = json.loads((tmp_path / "gateway_1.json").read_text())
    for request in record["samples"]["requests"]:
        assert 0 < request["overhead_s"] < request["total_s"]
        assert {"embed", "retrieve", "prefill", "decode"} <= set(request["stages"])
