"""A3's Tables 1 and 2: what reusing chunks costs in score, and what recomputing brings back."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.fidelity.report.markdown import percent, table, with_interval
from benchmarks.quality.experiments import FULL, GUESS, OURS, RATIO, at
from benchmarks.quality.report import order
from benchmarks.quality.report.scored import Scored, Scores
from benchmarks.quality.report.tables import (
    NONE,
    Compared,
    about,
    compare_all,
    difference,
    points,
    score_table,
    share,
)

START = "pie"
LEGEND = """\
FLOPs: of the prompt over full prefill's, mean [least, most]. Rows: document tokens computed anew.
TTFT: over full prefill's on the same sample, one after the other, median [quartiles]. Recovered:
share of the way from PIE to full prefill. Beside A3: less A3's average at the same ratio (without
a ratio: at {ratio:g}); p of the paired permutation test, Holm-corrected over the column.
"""


def sections(scores: Scores) -> list[str]:
    ratios = sorted({c.point for c in scores.configurations if c.point is not None})
    parts = [about(scores), score_table(scores)]
    parts += ["## Cost and gain\n", LEGEND.format(ratio=RATIO), gain_table(scores)]
    parts += ["## The published order\n", f"{order.TEXT}: all pairs; p Holm-corrected over them.\n"]
    for ratio in ratios:
        parts += [f"### r={ratio:g}\n", order.section(scores, ratio)]
    return parts


def rivals(scores: Scores) -> list[Compared]:
    """Pairs of each configuration and A3 at the same ratio."""
    wanted = []
    for s in scores.rows:
        ratio = RATIO if s.configuration.point is None else s.configuration.point
        rival = scores.named(at("a3", ratio))
        if rival is not None and rival is not s and s.name != GUESS:
            wanted.append((s, rival))
    return compare_all(scores, wanted)


def gain_table(scores: Scores, rows: Sequence[Scored] | None = None) -> str:
    beside = {c.ours.name: difference(c) for c in rivals(scores)}
    start = scores.named(START)
    lines = [
        [
            s.name,
            with_interval(s.average, points),
            recovered(scores, s, start),
            share(s.flops) if s.configuration.documents else NONE,
            percent(s.rows),
            share(s.ttft),
            *beside.get(s.name, [NONE, NONE]),
        ]
        for s in (scores.rows if rows is None else rows)
    ]
    head = ["configuration", "average", "recovered", "FLOPs", "rows", "TTFT"]
    return table([*head, "beside A3", "p"], lines)


def recovered(scores: Scores, of: Scored, start: Scored | None) -> str:
    value = None if start is None else scores.recovered(of, start)
    return NONE if value is None else f"{100 * value:.0f} %"


def headline(scores: Scores) -> str:
    """The index's table: the references, and every method at the papers' ratio."""
    names = [FULL, "full_reuse", START, at("legolink", RATIO), at("random_rows", RATIO)]
    names += [at("cacheblend", RATIO), at("a3", RATIO), at(OURS, RATIO), GUESS]
    rows = [s for name in names if (s := scores.named(name)) is not None]
    return score_table(scores, rows) + "\n" + gain_table(scores, rows)
