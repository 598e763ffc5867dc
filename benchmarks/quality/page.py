"""The page of a real model's table: figures, differences, and what `exact_below` makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.common.markdown import percent, table, with_interval
from benchmarks.quality.compare import holm, paired
from benchmarks.quality.outcomes import Outcome
from kvstitch_tune.prompts import Prompt
from kvstitch_tune.statistics import Bootstrap

FULL = "full prefill"
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
TAKEN_OVER = """\
What `exact_below` makes of it: full prefill takes over at the first token that leads the next best
by fewer nats. Same: the answer is full prefill's then; taken over: share of the answers; operations
are with what is computed in full.
"""
BELOW = (0.05, 0.1, 0.2, 0.3, 0.5)
"""Nats."""


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
    if any(row.column("lead")[0] is not None for row in rows):
        parts += ["## Exact where it is uncertain\n", TAKEN_OVER, taken_over(rows)]
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
    made = {
        name: [paired(row.values(name), reference.values(name)) for row in others]
        for name in columns
    }
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


def taken_over(rows: Sequence[Row]) -> str:
    """What each `exact_below` makes of every configuration whose leads were recorded."""
    bootstrap, lines = Bootstrap(len(rows[0].outcomes)), list[list[str]]()
    for row in rows:
        leads = [lead for lead in row.column("lead") if lead is not None]
        if row.name == FULL or len(leads) < len(row.outcomes):
            continue
        for below in (0.0, *BELOW):
            taken = [float(lead < below) for lead in leads]
            same = [max(each) for each in zip(row.values("same"), taken, strict=True)]
            share = sum(taken) / len(taken)
            lines.append(
                [
                    row.name,
                    f"{below:g}",
                    with_interval(bootstrap.mean(same), percent),
                    percent(share),
                    percent(_mean(row, "flops") + share),
                ]
            )
    return table(["configuration", "below", "same", "taken over", "operations"], lines)


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
