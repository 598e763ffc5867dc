"""Markdown tables, and how figures are written in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kvstitch_tune.statistics import Estimate


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def with_interval(estimate: Estimate, write: Callable[[float], str]) -> str:
    if math.isnan(estimate.mean):
        return "–"
    return f"{write(estimate.mean)} [{write(estimate.low)}, {write(estimate.high)}]"


def percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"
