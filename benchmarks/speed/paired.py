"""Runs several ways of doing one thing in turn.

A ratio thus never compares two distant moments of a noisy machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.speed.outcome import Figure, Target

Work = Callable[[], object]


@dataclass
class Taken:
    """Seconds of every repetition: wall-clock time, and processor time over all threads."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.wall)


@dataclass
class Paired:
    """The times of all ways, by name."""

    taken: dict[str, Taken]

    def ratios(self, of: str, over: str, scale: float = 1.0, clock: str = "wall") -> list[float]:
        """Time of one way relative to another, for every repetition, times `scale`."""
        a, b = getattr(self.taken[of], clock), getattr(self.taken[over], clock)
        return [scale * x / y for x, y in zip(a, b, strict=True)]

    def figure(
        self, what: str, of: str, over: str, target: Target | None = None, scale: float = 1.0
    ) -> Figure:
        """A figure of the time of one way relative to another."""
        cpu = self.ratios(of, over, scale, "cpu")
        return Figure(what, self.ratios(of, over, scale), target, cpu=cpu)

    def raw(self) -> dict[str, Any]:
        return {name: {"wall": t.wall, "cpu": t.cpu} for name, t in self.taken.items()}


def run_paired(
    ways: Mapping[str, Work],
    repetitions: int,
    *,
    before: Mapping[str, Work] | None = None,
    warm_up: bool = True,
) -> Paired:
    """Runs every way once per repetition, in rotating order.

    Args:
        ways: what to time, by name.
        repetitions: how often.
        before: prepares a way; not timed.
        warm_up: whether to run one more round first, which is not counted.
    """
    paired = Paired({name: Taken() for name in ways})
    names = list(ways)
    for turn in range(0 if warm_up else 1, repetitions + 1):
        for name in names if turn % 2 else reversed(names):
            if before and name in before:
                before[name]()
            wall, cpu = time.perf_counter(), time.process_time()
            ways[name]()
            took = time.perf_counter() - wall, time.process_time() - cpu
            if turn:
                paired.taken[name].wall.append(took[0])
                paired.taken[name].cpu.append(took[1])
    return paired
