"""The page of a real model's table: figures with intervals, differences, the published order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from benchmarks.common.markdown import percent, table, with_interval
from benchmarks.quality.compare import Paired, holm, paired
from benchmarks.quality.outcomes import Outcome
from kvstitch_tune.prompts import Prompt
from kvstitch_tune.statistics import Bootstrap, Estimate

FULL = "full prefill"
PUBLISHED = ("a3 r=0.15", "cacheblend r=0.15", "legolink k=4", "pie", "full_reuse")
"""Beginnings of the names, in the papers' order; full prefill is first by definition."""
LEGEND = """\
KL: full prefill ‖ method in nats per token along full prefill's greedy answer; first and next: of
its first token and of those after it. Right: an accepted answer occurs in the generated text; of
full's: on the prompts on which full prefill is right; exact: the text is an accepted answer and
nothing else; F1: of words, against the best accepted answer. Same: the generated text is full
prefill's, character by character; before difference: full prefill's words before the first that
differs, over all of its words; similar: 1 − edits over length. Agree: full prefill's answer tokens
that are the most likely ones here too. Operations, seconds of the processor, rows recomputed: over
full prefill's, over the prompt's. In brackets 95 % bootstrap intervals over prompts.
"""
DIFFERENCES = """\
Ours minus the base's on the same prompts [95 % paired bootstrap interval]; p of the paired
permutation test, Holm-corrected down each column. Less KL is better, and more of the other two.
"""
PAPERS = "Vanilla > A3 ≥ CacheBlend > LegoLink > PIE ≫ FullReuse"
SIGNIFICANT = 0.05
ORDER = """\
The papers rank {order}. A pair is decided where the
corrected p is below 0.05. Full prefill is at no distance from itself, so by KL it is first by
definition and left out. Differences are the left one minus the right one.
"""


@dataclass(frozen=True)
class Row:
    """One configuration; outcomes are in the order of the prompts."""

    name: str
    outcomes: Sequence[Outcome] = field(repr=False)

    def column(self, name: str) -> list[float | None]:
        return [getattr(one, name) for one in self.outcomes]

    def values(self, name: str) -> list[float]:
        return [float(getattr(one, name)) for one in self.outcomes]


def page(
    title: str, prompts: Sequence[Prompt], rows: Sequence[Row], *, base: str | None = None
) -> str:
    """The page. `base` names the row that the others are compared with, if they are to be."""
    lengths = sorted(p.tokens for p in prompts)
    about = f"{len(prompts)} prompts of {lengths[0]} to {lengths[-1]} tokens"
    about += f" (median {lengths[len(lengths) // 2]})."
    parts = [f"# {title}\n", about + "\n", LEGEND, scores(rows), agreement(rows)]
    tasks = [p.task for p in prompts]
    if len(set(tasks)) > 1:
        parts += ["## By task\n", by_task(rows, tasks)]
    if base is not None:
        parts += [f"## Against {base}\n", DIFFERENCES, differences(rows, base)]
    if order := published_order(rows):
        parts += ["## The published order\n", ORDER.format(order=PAPERS), order]
    return "\n".join(parts)


def scores(rows: Sequence[Row]) -> str:
    bootstrap = Bootstrap(len(rows[0].outcomes))

    def cell(row: Row, name: str, write: Callable[[float], str]) -> str:
        return with_interval(bootstrap.mean(row.column(name)), write)

    return table(
        ["configuration", "operations", "KL", "first", "next", "right", "of full's", "exact", "F1"],
        [
            [
                row.name,
                percent(_mean(row, "flops")),
                cell(row, "kl", _three),
                cell(row, "kl_first", _three),
                cell(row, "kl_next", _three),
                cell(row, "right", percent),
                cell(row, "right_of_full", percent),
                percent(_mean(row, "exact")),
                cell(row, "f1", _three),
            ]
            for row in rows
        ],
    )


def agreement(rows: Sequence[Row]) -> str:
    bootstrap = Bootstrap(len(rows[0].outcomes))
    columns = {
        "same": percent, "before_difference": percent, "similar": _three, "agree": percent,
    }  # fmt: skip
    return table(
        ["configuration", *(name.replace("_", " ") for name in columns), "rows", "seconds"],
        [
            [
                row.name,
                *(with_interval(bootstrap.mean(row.column(n)), w) for n, w in columns.items()),
                percent(_mean(row, "rows")),
                _seconds(row),
            ]
            for row in rows
        ],
    )


def by_task(rows: Sequence[Row], tasks: Sequence[str]) -> str:
    names = list(dict.fromkeys(tasks))

    def cells(row: Row, task: str) -> str:
        own = Row(row.name, [o for o, of in zip(row.outcomes, tasks, strict=True) if of == task])
        return f"{_three(_mean(own, 'kl'))}; {percent(_mean(own, 'right'))}"

    head = ["KL; right", *names]
    return table(head, [[row.name, *(cells(row, task) for task in names)] for row in rows])


def differences(rows: Sequence[Row], base: str) -> str:
    reference = next(row for row in rows if row.name == base)
    others = [row for row in rows if row.name not in (base, FULL)]
    columns = {"kl": _three, "right": _points, "same": _points}
    made = {name: [_paired(row, reference, name) for row in others] for name in columns}
    adjusted = {name: holm([p.p for p in of]) for name, of in made.items()}
    return table(
        ["configuration", *(text for name in columns for text in (f"Δ {name}", "p"))],
        [
            [
                row.name,
                *(
                    text
                    for name, write in columns.items()
                    for text in (
                        with_interval(made[name][i].difference, write),
                        f"{adjusted[name][i]:.3f}",
                    )
                ),
            ]
            for i, row in enumerate(others)
        ],
    )


def published_order(rows: Sequence[Row]) -> str | None:
    """Every pair of the papers' order, by KL and by right answers; None without two of them."""
    found = [match for name in PUBLISHED if (match := _bare_last(rows, name)) is not None]
    full = next(row for row in rows if row.name == FULL)
    near = list(combinations(found, 2))
    if not near:
        return None
    answers = [*((full, row) for row in found), *near]
    kl = [_paired(ours, theirs, "kl", sign=-1) for ours, theirs in near]
    right = [_paired(ours, theirs, "right") for ours, theirs in answers]
    lines = [
        *_order_lines("KL", near, kl, _three, sign=-1),
        *_order_lines("right", answers, right, _points, sign=1),
    ]
    return table(["by", "the papers' claim", "difference", "p", "here"], lines)


def _order_lines(
    by: str,
    pairs: Sequence[tuple[Row, Row]],
    made: Sequence[Paired],
    write: Callable[[float], str],
    *,
    sign: int,
) -> list[list[str]]:
    adjusted = holm([p.p for p in made])
    return [
        [
            by,
            f"{ours.name} before {theirs.name}",
            with_interval(_signed(p.difference, sign), write),
            f"{value:.3f}",
            _verdict(p.difference.mean, value),
        ]
        for (ours, theirs), p, value in zip(pairs, made, adjusted, strict=True)
    ]


def _verdict(difference: float, p: float) -> str:
    if p >= SIGNIFICANT or difference == 0:
        return "undecided"
    return "as the papers say" if difference > 0 else "the other way round"


def _bare_last(rows: Sequence[Row], name: str) -> Row | None:
    """The configuration of that name; behind the system prompt if it was measured so, else bare."""
    found = [r for r in rows if r.name == name or r.name.startswith(f"{name} ")]
    found = [r for r in found if r.name.endswith((" system", " none"))]
    return max(found, key=lambda row: row.name.endswith(" system"), default=None)


def _paired(ours: Row, theirs: Row, name: str, *, sign: int = 1) -> Paired:
    """`sign` −1 where less is better, so that a positive difference is ours being better."""
    mine = [sign * value for value in ours.values(name)]
    others = [sign * value for value in theirs.values(name)]
    return paired(mine, others)


def _signed(difference: Estimate, sign: int) -> Estimate:
    if sign > 0:
        return difference
    return Estimate(-difference.mean, -difference.high, -difference.low)


def _mean(row: Row, name: str) -> float:
    values = row.values(name)
    return sum(values) / len(values)


def _seconds(row: Row) -> str:
    measured = [value for value in row.column("seconds") if value is not None]
    return _three(sum(measured) / len(measured)) if measured else ""


def _three(value: float) -> str:
    return f"{value:.3f}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"
