"""The locust users, where locust is installed (it is an extra)."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.service import Service

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.skipif(find_spec("locust") is None, reason="locust is not installed (an extra)")
def test_locust_reports_ttft_and_tpot(service: Service, tmp_path: Path) -> None:
    """Two users for some seconds: requests, TTFT and TPOT are three rows, none with a failure."""
    # In a process of its own: importing locust replaces parts of the standard library.
    command = [sys.executable, "-m", "locust", "-f", str(REPOSITORY / "loadtest" / "locustfile.py")]
    command += ["--headless", "--users", "2", "--spawn-rate", "2", "--run-time", "15s"]
    command += ["--host", str(service.http.base_url), "--csv", str(tmp_path / "stats")]
    questions = REPOSITORY / "tests" / "data" / "musique_slice.jsonl"
    environment = {
        **os.environ,
        "KVSTITCH_QUESTIONS": str(questions),
        "KVSTITCH_REQUEST": '{"max_tokens": 8}',
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "stats_stats.csv").open() as file:
        rows = {row["Type"]: row for row in csv.DictReader(file)}
    for kind in ("POST", "TTFT", "TPOT"):
        assert int(rows[kind]["Request Count"]) > 0, kind
        assert int(rows[kind]["Failure Count"]) == 0
    median = {kind: float(rows[kind]["Average Response Time"]) for kind in rows if kind}
    assert median["TPOT"] < median["TTFT"] < median["POST"]
