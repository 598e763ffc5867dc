"""Runs several ways of doing one thing in turn, so that a ratio never compares two moments of a
noisy machine; and one layout for the results."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results" / "speed"


@dataclass
class Taken:
    """Seconds of every repetition: on the clock, and of processor time over all threads (which
    other programs on the machine hardly touch)."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


@dataclass
class Paired:
    """Named ways, each with what it took per repetition."""

    taken: dict[str, Taken]

    def ratio(self, of: str, over: str, scale: float = 1.0) -> dict[str, Any]:
        """Time of one way over another's, per repetition, times `scale`; for both clocks."""
        out = {}
        for clock in ("wall", "cpu"):
            a, b = getattr(self.taken[of], clock), getattr(self.taken[over], clock)
            values = [scale * x / y for x, y in zip(a, b, strict=True)]
            out[clock] = {
                "median": statistics.median(values),
                "min": min(values),
                "max": max(values),
            }
        return out

    def raw(self) -> dict[str, Any]:
        return {name: {"wall": t.wall, "cpu": t.cpu} for name, t in self.taken.items()}


def run_paired(ways: Mapping[str, Callable[[], object]], repetitions: int) -> Paired:
    """Every way once per repetition, in an order that turns round; the first round warms up."""
    paired = Paired({name: Taken() for name in ways})
    names = list(ways)
    for turn in range(repetitions + 1):
        for name in names if turn % 2 else reversed(names):
            wall, cpu = time.perf_counter(), time.process_time()
            ways[name]()
            took = time.perf_counter() - wall, time.process_time() - cpu
            if turn:
                paired.taken[name].wall.append(took[0])
                paired.taken[name].cpu.append(took[1])
    return paired


def table(record: Mapping[str, Any]) -> str:
    """The ratios of a record, one a line."""
    lines = [record["what"]]
    for name, ratio in record["ratios"].items():
        cells = [
            f"{clock} {r['median']:6.3f} ({r['min']:.3f} to {r['max']:.3f})"
            for clock, r in ratio.items()
        ]
        lines.append(f"  {name:46s} {'   '.join(cells)}")
    return "\n".join(lines)


def write(record: Mapping[str, Any], name: str, out: Path | None) -> None:
    path = out or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
