"""What an operator should know about the measured documents, whatever is recommended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from service.prompt import COMPANION_MODES

Row = Mapping[str, Any]


def warnings(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence for each prefix mode that puts other chunks before a chunk and does harm.

    Args:
        stages: of `contents.report`.
    """
    rows = [r for s in stages if s["name"] == "prefix" for r in s["candidates"]]
    return [text for mode in COMPANION_MODES for text in _harm(mode, rows)]


def _harm(mode: str, rows: list[Row]) -> Iterator[str]:
    pairs = [
        (row["kl"]["mean"], alone["kl"]["mean"])
        for row in rows
        if row["prefix_mode"] == mode
        for alone in rows
        if alone["prefix_mode"] == "system" and _same_but_mode(row, alone)
    ]
    if not pairs:
        return
    behind, alone = (fmean(each) for each in zip(*pairs, strict=True))
    if behind > alone:
        yield (
            f"prefix_mode {mode} does harm on these documents: KL {behind:.3g} nats per token, "
            f"behind the system prompt alone {alone:.3g} (mean of {len(pairs)} configurations). "
            "Chunks stand behind others than those that they are asked with: use system, or put "
            "documents of different kinds into collections of their own."
        )


def _same_but_mode(a: Row, b: Row) -> bool:
    return all(a[name] == b[name] for name in ("fusion", "codec", "eviction"))
