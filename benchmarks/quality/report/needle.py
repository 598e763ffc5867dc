"""Needle maps: a method's score at every depth of every length."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from benchmarks.fidelity.report.markdown import percent, table, with_interval
from benchmarks.quality.report import plots
from benchmarks.quality.report.scored import Scored, Scores
from benchmarks.quality.report.tables import about, points
from benchmarks.quality.scores import score

LEGEND = """\
ROUGE-1: F measure against the expected text. Least: the lowest mean of a cell. FLOPs: over full
prefill's. An answer that gives only the half of a needle sentence behind "is" cannot reach 100.
"""


def sections(scores: Scores) -> list[str]:
    rows = [
        [
            s.name,
            with_interval(s.average, points),
            points(_rouge(scores, s)),
            points(min(v for line in grid(scores, s) for v in line if not math.isnan(v))),
            percent(s.flops.middle),
        ]
        for s in scores.rows
    ]
    metric = scores.run.samples[0].text.metric
    head = ["configuration", metric, "ROUGE-1", "least", "FLOPs"]
    return [about(scores), LEGEND, table(head, rows)]


def figures(scores: Scores, folder: Path) -> list[Path]:
    lengths, depths = _axis(scores, "length"), _axis(scores, "depth")
    return [
        plots.maps(
            {s.name: grid(scores, s) for s in scores.rows},
            folder / "needle_map.png",
            columns=[f"{length:g}" for length in lengths],
            rows=[f"{depth:g}" for depth in depths],
            labels=("length, tokens", "depth, %"),
        )
    ]


def grid(scores: Scores, scored: Scored) -> list[list[float]]:
    """Mean scores by depth, then by length."""
    cells: dict[tuple[float, float], list[float]] = defaultdict(list)
    for sample, result in zip(scores.run.samples, scored.results, strict=True):
        details = sample.text.details
        cells[float(details["depth"]), float(details["length"])].append(result.score)
    return [
        [fmean(cells[d, n]) if (d, n) in cells else math.nan for n in _axis(scores, "length")]
        for d in _axis(scores, "depth")
    ]


def _axis(scores: Scores, name: str) -> list[float]:
    return sorted({float(s.text.details[name]) for s in scores.run.samples})


def _rouge(scores: Scores, scored: Scored) -> float:
    return fmean(
        score("rouge1", result.text, sample.text.references)
        for sample, result in zip(scores.run.samples, scored.results, strict=True)
    )
