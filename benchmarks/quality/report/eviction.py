"""K-VEC's Tables 1, 6, 7 and 10, and A3's Table 3: what evicting KV entries costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.fidelity.report.markdown import percent, table, with_interval
from benchmarks.quality.experiments import FULL
from benchmarks.quality.report import plots
from benchmarks.quality.report.scored import Scored, Scores
from benchmarks.quality.report.tables import (
    NONE,
    Compared,
    about,
    compare_all,
    difference,
    points,
    score_table,
    signed,
)
from tuning.statistics import Estimate

KVEC = "kvec"
LEGEND = """\
Difference: less full prefill's average. Coverage: tokens of the prompt that some head of some layer
kept. Kept: document entries held after the first token, mean over layers. Beside kvec: less kvec's
average at the same budget; p of the paired permutation test, Holm-corrected over the table. The
first answer token precedes eviction: tasks whose answer is one token cannot lose by it.
"""
PARTS = """\
Each row is kvec with one change; beside kvec as published: difference, p of the paired permutation
test, Holm-corrected over the table.
"""
EXTENSION = """\
(ex: …): after fusion, the KV is evicted to 17 % of the prompt's tokens, instruction and question
among them. Each such row is compared with the same fusion without eviction; p Holm-corrected.
"""


def sections(scores: Scores) -> list[str]:
    parts = [about(scores), LEGEND]
    for budget in budgets(scores):
        rows = [scores.rows[0], *_at(scores, budget)]
        parts += [f"## {named(budget)}\n", score_table(scores, rows), coverage_table(scores, rows)]
    return parts


def coverage_table(scores: Scores, rows: Sequence[Scored]) -> str:
    """Score and coverage relative to full prefill, and each method compared with kvec."""
    full = scores.rows[0]
    beside = {c.ours.name: difference(c) for c in _beside(scores, rows)}
    lines = [
        [
            s.name,
            with_interval(s.average, points),
            signed(s.average.mean - full.average.mean),
            percent(s.coverage),
            signed(s.coverage - full.coverage),
            percent(s.kept),
            *beside.get(s.name, [NONE, NONE]),
        ]
        for s in rows
    ]
    head = ["configuration", "average", "difference", "coverage", "difference", "kept"]
    return table([*head, "beside kvec", "p"], lines)


def rivals(scores: Scores) -> list[Compared]:
    """Pairs of every method and kvec at the same budget."""
    found = [_beside(scores, _at(scores, budget)) for budget in budgets(scores)]
    return [compared for own in found for compared in own]


def figures(scores: Scores, folder: Path) -> list[Path]:
    """Score and coverage against the budget."""
    share = all(budget < 1 for budget in budgets(scores))
    label = "budget, % of the prompt" if share else "budget, entries a layer and KV head"

    def coverage(s: Scored) -> Estimate:
        return Estimate(s.coverage, s.coverage, s.coverage)

    def budget(s: Scored) -> float | None:
        return s.configuration.point

    return [
        plots.curves(
            scores.rows,
            folder / "eviction_score.png",
            x=budget,
            label=label,
            flat=[FULL],
            percent=share,
        ),
        plots.curves(
            scores.rows[1:],
            folder / "eviction_coverage.png",
            x=budget,
            label=label,
            y=coverage,
            y_label="coverage, % of the prompt's tokens",
            percent=share,
        ),
    ]


def parts_sections(scores: Scores) -> list[str]:
    """K-VEC's ablation: every row compared with the second, which is kvec as published."""
    full, base, *changed = scores.rows
    compared = {c.ours.name: c for c in parts(scores)}
    rows = [
        [
            s.name,
            with_interval(s.average, points),
            percent(s.coverage),
            *(difference(compared[s.name]) if s.name in compared else [NONE, NONE]),
        ]
        for s in (full, base, *changed)
    ]
    head = ["configuration", "average", "coverage", "beside kvec", "p"]
    return [about(scores), PARTS, table(head, rows), "## By task\n", score_table(scores)]


def parts(scores: Scores) -> list[Compared]:
    _, base, *changed = scores.rows
    return compare_all(scores, [(s, base) for s in changed])


def extension_sections(scores: Scores) -> list[str]:
    rows = [
        [
            c.ours.name,
            with_interval(c.theirs.average, points),
            with_interval(c.ours.average, points),
            *difference(c),
            percent(c.ours.kept),
            percent(c.ours.coverage),
        ]
        for c in extended(scores)
    ]
    head = ["configuration", "without", "with", "difference", "p", "kept", "coverage"]
    return [about(scores), EXTENSION, score_table(scores), table(head, rows)]


def extended(scores: Scores) -> list[Compared]:
    """A3's Table 3: each fusion method, followed by the same with evictions after it."""
    pairs, plain = [], scores.rows[0]
    for s in scores.rows:
        if s.configuration.eviction is None:
            plain = s
        else:
            pairs.append((s, plain))
    return compare_all(scores, pairs)


def budgets(scores: Scores) -> list[float]:
    return sorted({c.point for c in scores.configurations if c.point is not None})


def named(budget: float) -> str:
    return f"{100 * budget:g} % of the prompt" if budget < 1 else f"{budget:g} entries"


def _at(scores: Scores, budget: float) -> list[Scored]:
    return [s for s in scores.rows if s.configuration.point == budget]


def _beside(scores: Scores, rows: Sequence[Scored]) -> list[Compared]:
    base = next((s for s in rows if s.configuration.curve == KVEC), None)
    return compare_all(scores, [(s, base) for s in rows if base is not None and s is not base])
