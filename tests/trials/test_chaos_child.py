"""A process dies exactly where it was asked to, and only once; its clock jumps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trials.chaos.life import CHILD, Faults

REPLACE_THREE = """
import os, pathlib
for n in range(3):
    path = pathlib.Path(f"new-{n}")
    path.write_text("x")
    os.replace(path, f"there-{n}")
"""
INSERT = """
import sqlite3
connection = sqlite3.connect("rows.db")
connection.execute("CREATE TABLE IF NOT EXISTS rows (n)")
connection.execute("INSERT INTO rows VALUES (1)")
connection.commit()
"""


def run(code: str, folder: Path, faults: Faults) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(CHILD), "CHAOS_FAULTS": str(faults.folder)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize(("after", "there"), [(False, 1), (True, 2)])
def test_it_dies_at_the_second_call(tmp_path: Path, after: bool, there: int) -> None:
    faults = Faults(tmp_path / "faults")
    faults.die_at("gateway", "os.replace", nth=2, after=after)
    assert run(REPLACE_THREE, tmp_path, faults).returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("there-*"))) == there
    assert not faults.pending("gateway")
    assert run(REPLACE_THREE, tmp_path, faults).returncode == 0
    assert len(list(tmp_path.glob("there-*"))) == 3


@pytest.mark.parametrize(("after", "rows"), [(False, 0), (True, 1)])
def test_it_dies_around_a_commit(tmp_path: Path, after: bool, rows: int) -> None:
    faults = Faults(tmp_path / "faults")
    faults.die_at("gateway", "sqlite.commit", nth=1, after=after)
    assert run(INSERT, tmp_path, faults).returncode == -signal.SIGKILL
    count = "import sqlite3; print(len(sqlite3.connect('rows.db').execute(%r).fetchall()))"
    seen = run(count % "SELECT * FROM rows", tmp_path, faults)
    assert seen.stdout.strip() == str(rows), seen.stderr


def test_a_plan_for_the_worker_is_not_the_gateways(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "faults")
    faults.die_at("worker", "os.replace", nth=1, after=False)
    assert run(REPLACE_THREE, tmp_path, faults).returncode == 0
    assert faults.pending("worker")


def test_the_time_of_day_jumps(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "faults")
    faults.shift_clock(-86_400)
    code = "import time; print(time.time()); print(time.time_ns() / 1e9)"
    real = float(run("import time; print(time.time())", tmp_path, Faults(tmp_path / "none")).stdout)
    for shifted in map(float, run(code, tmp_path, faults).stdout.split()):
        assert abs(shifted + 86_400 - real) < 3600


def test_it_dies_with_the_run(tmp_path: Path) -> None:
    """The run is a process that starts another one and is gone before that has ended."""
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', %r]).pid)"
    sleep = "open('alive', 'w').close(); import time; time.sleep(60)"
    waiting = "import os, time\nwhile not os.path.exists('alive'): time.sleep(0.01)"
    started = run(f"{code % sleep}\n{waiting}", tmp_path, Faults(tmp_path / "faults"))
    child = Path(f"/proc/{int(started.stdout)}/stat")
    give_up_at = time.monotonic() + 120
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
