"""Files with the outcome of a line: figures, raw samples, machine, versions, commit, seed.

There is a file for each line and number of threads, so that a run that was cut short can continue
where it stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.outcome import Outcome
from benchmarks.speed.setup import Setup
from kvstitch_tune.records import describe

Record = dict[str, Any]


def of(line: str, setup: Setup, outcome: Outcome, seconds: float) -> Record:
    return head_of(line, setup) | {
        "measured": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "took_s": round(seconds, 1),
        "figures": [figure.to_json() for figure in outcome.figures],
        "notes": list(outcome.notes),
        "samples": dict(outcome.samples),
    }


def path_of(folder: Path, line: str, threads: int) -> Path:
    return folder / f"{line}_{threads}.json"


def save(folder: Path, record: Record) -> None:
    path = path_of(folder, record["line"], record["threads"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def read(folder: Path, line: str, threads: int) -> Record | None:
    path = path_of(folder, line, threads)
    if not path.exists():
        return None
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    return record


def read_all(folder: Path, lines: Sequence[str], threads: Sequence[int]) -> list[Record]:
    """The existing records, by number of threads, then in the order of `lines`."""
    found = [read(folder, line, count) for count in threads for line in lines]
    return [record for record in found if record is not None]


def same_run(kept: Record, head: Record) -> bool:
    """Whether a record is of the commit, the machine and the size of `head`.

    False if code had uncommitted changes, because then it is unknown what was measured.
    """
    head = json.loads(json.dumps(head))
    return not head["environment"]["uncommitted"] and all(kept.get(k) == head[k] for k in head)


def head_of(line: str, setup: Setup) -> Record:
    """What distinguishes one run from another."""
    return {
        "line": line,
        "threads": setup.threads,
        "repetitions": setup.repetitions,
        "seed": setup.seed,
        "shape": setup.shape.to_json(),
        "environment": describe(),
    }
