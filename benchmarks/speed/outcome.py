"""The outcome of a line: figures with samples, targets and verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Target:
    """A limit for the median of the samples."""

    limit: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


def at_most(limit: float) -> Target:
    return Target(limit)


def at_least(limit: float) -> Target:
    return Target(limit, at_least=True)


@dataclass(frozen=True)
class Figure:
    """One number of the table.

    Attributes:
        what: was measured.
        samples: one per repetition.
        target: that the median should meet.
        unit: of the samples.
        cpu: the same in processor time over all threads, which other programs hardly affect.
    """

    what: str
    samples: Sequence[float]
    target: Target | None = None
    unit: str = ""
    cpu: Sequence[float] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return "met" if self.target.met(self.median) else "missed"

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "unit": self.unit,
            "target": None if self.target is None else str(self.target),
            "verdict": self.verdict,
            "median": self.median,
            "min": min(self.samples),
            "max": max(self.samples),
            "cpu_median": statistics.median(self.cpu) if self.cpu else None,
            "samples": list(self.samples),
        }


@dataclass(frozen=True)
class Outcome:
    """What a line returns.

    Attributes:
        figures: for the table.
        samples: all times, JSON-ready.
        notes: for the reader, such as a peer that is not installed.
    """

    figures: Sequence[Figure]
    samples: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
