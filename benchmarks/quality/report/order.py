"""Tests the papers' ranking of methods on the data, pair by pair (docs/specification.md §6)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from benchmarks.fidelity.report.markdown import table
from benchmarks.quality.experiments import FULL, at
from benchmarks.quality.report.scored import Scores
from benchmarks.quality.report.tables import Compared, compare_all, difference, points

TEXT = "Vanilla > A3 ≥ CacheBlend > LegoLink > PIE ≫ FullReuse"
SIGNIFICANT = 0.05
AS_PUBLISHED, REVERSED, UNDECIDED = "as the papers say", "the other way round", "undecided"


@dataclass(frozen=True)
class Pair:
    """A pair of the ranking: the papers found `compared.ours` better, or for ≥ not worse."""

    relation: str
    compared: Compared
    verdict: str


def pairs(scores: Scores, ratio: float) -> list[Pair]:
    """All measured pairs of the ranking at this ratio, with p values corrected over all of them."""
    ranking = [scores.named(name) for name in _names(ratio)]
    wanted = list(combinations([s for s in ranking if s is not None], 2))
    return [_pair(c, ratio) for c in compare_all(scores, wanted)]


def section(scores: Scores, ratio: float) -> str:
    rows = [
        [
            f"{pair.compared.ours.name} {pair.relation} {pair.compared.theirs.name}",
            points(pair.compared.ours.average.mean),
            points(pair.compared.theirs.average.mean),
            *difference(pair.compared),
            pair.verdict,
        ]
        for pair in pairs(scores, ratio)
    ]
    head = ["the papers' claim", "left", "right", "difference", "p", "here"]
    return table(head, rows)


def _names(ratio: float) -> list[str]:
    chosen = [at(name, ratio) for name in ("a3", "cacheblend", "legolink")]
    return [FULL, *chosen, "pie", "full_reuse"]


def _pair(compared: Compared, ratio: float) -> Pair:
    close = (compared.ours.name, compared.theirs.name) == (at("a3", ratio), at("cacheblend", ratio))
    return Pair(
        "≥" if close else ">", compared, verdict(compared.paired.difference.mean, compared.p)
    )


def verdict(difference: float, p: float) -> str:
    if p >= SIGNIFICANT or difference == 0:
        return UNDECIDED
    return AS_PUBLISHED if difference > 0 else REVERSED
