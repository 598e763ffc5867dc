"""Checks that new averages lie within the intervals of a committed table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fidelity.report.markdown import table, with_interval
from benchmarks.quality.report.tables import points
from service.errors import InvalidRequest
from tuning.statistics import Estimate


@dataclass(frozen=True)
class Checked:
    name: str
    committed: Estimate
    fresh: float

    @property
    def within(self) -> bool:
        # Scores are stored with four digits.
        return self.committed.low - 5e-5 <= self.fresh <= self.committed.high + 5e-5


def check(committed: Path, fresh: Path) -> list[Checked]:
    """Checks every configuration of the committed table.

    Returns:
        The old and the new average of each configuration.

    Raises:
        InvalidRequest: a file is not such a table, the two are of different models or samples, or
            the new one lacks a configuration.
    """
    old, new = _read(committed), _read(fresh)
    for what in ("model", "suite", "seeds", "samples_per_task", "ranked"):
        if old.get(what) != new.get(what):
            raise InvalidRequest(
                f"{committed} is of {what} {old.get(what)}, and this run of {new.get(what)}: make "
                "it again with --replace",
                field="check",
            )
    averages = {c["name"]: c["average"]["mean"] for c in new["configurations"]}
    if absent := [c["name"] for c in old["configurations"] if c["name"] not in averages]:
        raise InvalidRequest(f"not measured: {', '.join(absent)}", field="check")
    return [
        Checked(c["name"], Estimate(**c["average"]), averages[c["name"]])
        for c in old["configurations"]
    ]


def shown(checked: list[Checked]) -> str:
    rows = [
        [
            c.name,
            with_interval(c.committed, points),
            points(c.fresh),
            "within" if c.within else "**outside**",
        ]
        for c in checked
    ]
    return table(["configuration", "committed", "fresh", "interval"], rows)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        record: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        record["configurations"]
    except (OSError, ValueError, KeyError) as error:
        raise InvalidRequest(
            f"{path} is no table of this report: {error}", field="check"
        ) from error
    return record
