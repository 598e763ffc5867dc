"""Markdown tables that several experiments share; scores are times 100."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.fidelity.report.markdown import percent, table, with_interval
from benchmarks.quality.compare import Paired, holm
from benchmarks.quality.report.scored import Scored, Scores, Spread

NONE = "–"


@dataclass(frozen=True)
class Compared:
    """A comparison; `p` is that of the paired permutation test, Holm-corrected over its table."""

    ours: Scored
    theirs: Scored
    paired: Paired
    p: float


def compare_all(scores: Scores, pairs: Sequence[tuple[Scored, Scored]]) -> list[Compared]:
    made = [scores.against(ours, theirs) for ours, theirs in pairs]
    adjusted = holm([paired.p for paired in made])
    return [
        Compared(ours, theirs, paired, p)
        for (ours, theirs), paired, p in zip(pairs, made, adjusted, strict=True)
    ]


def score_table(scores: Scores, rows: Sequence[Scored] | None = None) -> str:
    """A row per configuration: every task, the average over ranked tasks, the average by seed."""
    seeds = scores.seeds if len(scores.seeds) > 1 else []
    head = ["configuration", *(_task(scores, t) for t in scores.tasks), "average"]
    lines = [
        [
            s.name,
            *(with_interval(s.by_task[t], points) for t in scores.tasks),
            f"**{with_interval(s.average, points)}**",
            *(points(s.by_seed[seed]) for seed in seeds),
        ]
        for s in (scores.rows if rows is None else rows)
    ]
    return table([*head, *(f"seed {seed}" for seed in seeds)], lines)


def difference_table(compared: Sequence[Compared], costs: bool = True) -> str:
    """Differences between pairs of configurations, with the costs of both."""
    head = ["configuration", "beside", "difference", "p", "won", "lost"]
    rows = [
        [c.ours.name, c.theirs.name, *difference(c), str(c.paired.won), str(c.paired.lost)]
        + ([percent(c.ours.flops.middle), percent(c.theirs.flops.middle)] if costs else [])
        for c in compared
    ]
    return table([*head, "FLOPs", "its FLOPs"] if costs else head, rows)


def difference(c: Compared) -> list[str]:
    return [with_interval(c.paired.difference, signed), p_value(c.p)]


def points(score: float) -> str:
    return f"{100 * score:.1f}"


def signed(score: float) -> str:
    return f"{100 * score:+.1f}"


def p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def share(spread: Spread | None) -> str:
    """`middle [low, high]` in percent."""
    if spread is None:
        return NONE
    return f"{percent(spread.middle)} [{percent(spread.low)}, {percent(spread.high)}]"


def about(scores: Scores) -> str:
    """A paragraph on what is averaged, and which tasks are ranked."""
    counts = [f"{task} {sum(s.task == task for s in scores.run.samples)}" for task in scores.tasks]
    timed = len({sample for sample, _ in scores.run.timings})
    text = (
        "Scores × 100, mean over samples [95 % bootstrap interval]; average: macro average over "
        f"the ranked tasks ({', '.join(scores.ranked)}), its interval by the bootstrap over the "
        f"samples of each. Samples: {', '.join(counts)}"
    )
    text += f"; {timed} of them timed.\n" if timed else ".\n"
    if not scores.learnt:
        text += "Full prefill answers no task well enough to rank by: all are averaged.\n"
    return text


def _task(scores: Scores, task: str) -> str:
    return task if task in scores.ranked else f"{task} (not ranked)"
