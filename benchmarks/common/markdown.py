"""Markdown tables, and how figures are written in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from tuning.statistics import Estimate


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def with_interval(estimate: Estimate, write: Callable[[float], str]) -> str:
    if math.isnan(estimate.mean):
        return "–"
    return f"{write(estimate.mean)} [{write(estimate.low)}, {write(estimate.high)}]"


def percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def into(file: Path, name: str, text: str) -> None:
    """Replaces what stands in a page between `<!-- NAME -->` and `<!-- end of NAME -->`.

    Raises:
        ValueError: the page has no such lines.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, _, rest = file.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{file} has no lines {begin.strip()} and {end}")
    file.write_text(f"{before}{begin}{text}{end}{after}", encoding="utf-8")
