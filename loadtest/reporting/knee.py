"""The knee of a method: the highest rate at which it still keeps the SLO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Knee:
    """The knee of one method, in requests per second.

    Attributes:
        rate: the highest tested rate up to which every step kept the SLO; None: not even the
            lowest did.
        crossing: where a straight line to the next step falls below the target; None: it never
            did, so the knee is higher than every tested rate.
    """

    rate: float | None
    crossing: float | None

    def describe(self) -> dict[str, float | None]:
        return asdict(self)

    def __str__(self) -> str:
        if self.rate is None:
            return "below the lowest rate"
        return f"{self.rate:g}/s" + ("" if self.crossing is not None else " or more")


def find_knee(steps: Sequence[dict[str, Any]], attainment: float) -> Knee:
    """Find the knee from the steps of one method; invalid steps are ignored."""
    measured = sorted(
        (step["rate"], step["slo_attainment"])
        for step in steps
        if step["valid"] and step["slo_attainment"] is not None
    )
    held: tuple[float, float] | None = None
    for rate, reached in measured:
        if reached < attainment:
            if held is None:
                return Knee(None, None)
            share = (held[1] - attainment) / (held[1] - reached)
            return Knee(held[0], held[0] + share * (rate - held[0]))
        held = (rate, reached)
    return Knee(None if held is None else held[0], None)


def ratio(knee: Knee, base: Knee) -> tuple[float, bool] | None:
    """The ratio of two knees.

    Returns:
        The ratio of the crossings, and whether it is only a lower bound. None if one of them has
        no knee.
    """
    if base.crossing is None or knee.rate is None:
        return None
    if knee.crossing is None:
        return knee.rate / base.crossing, True
    return knee.crossing / base.crossing, False


def knees(
    steps: Sequence[dict[str, Any]], labels: Sequence[str], attainment: float
) -> dict[str, Any]:
    """The knee of each method, and its ratio to the knee of the first one."""
    found = {
        label: find_knee([step for step in steps if step["method"] == label], attainment)
        for label in labels
    }
    base = found[labels[0]]
    out = {}
    for label, mine in found.items():
        further = ratio(mine, base)
        times, at_least = further if further is not None else (None, False)
        out[label] = {**mine.describe(), "further_right": times, "at_least": at_least}
    return out
