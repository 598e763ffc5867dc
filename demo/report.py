"""The demo's lines and tables: answers side by side, right ones by kind, what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo.client import Answer
from demo.questions import KINDS
from demo.scenario import Outcome


def is_plain(console: Console) -> bool:
    """Whether nothing may move: in a pipe, and in a picture, which would hold every step."""
    return not console.is_terminal or console.record


def say(console: Console, text: str, style: str = "") -> None:
    """Prints a line; only a terminal, or a picture of one, breaks it."""
    console.print(Text(text, style), soft_wrap=not (console.is_terminal or console.record))


def print_answers(console: Console, outcomes: Sequence[Outcome], *, long: bool) -> None:
    """Prints one row per question; the long form has expected answers and citations."""
    table = Table(show_lines=long)
    table.add_column("question", ratio=3)
    for name in ("full prefill", "kvstitch"):
        table.add_column(name, ratio=4)
    table.add_column("first word", justify="right", no_wrap=True)
    for outcome in outcomes:
        asked = Text(outcome.question.question)
        if long:
            asked.append(f"\n{outcome.question.expected}", style="dim")
        times = f"{outcome.full.ttft:.2f} → {outcome.ours.ttft:.2f} s  ×{outcome.ratio:.2f}"
        shown = [_answer(outcome, answer, long) for answer in (outcome.full, outcome.ours)]
        table.add_row(asked, *shown, times)
    console.print(table)


def _answer(outcome: Outcome, answer: Answer, long: bool) -> Text:
    right = outcome.question.is_right(answer.text)
    shown = Text("✓ " if right else "✗ ", style="green" if right else "red")
    same = answer is outcome.ours and outcome.same
    shown.append("the same" if same else answer.text or "(nothing)")
    if long:
        shown.append(f"\n{citations(outcome, answer)}", style="dim")
    return shown


def citations(outcome: Outcome, answer: Answer) -> str:
    """The cited documents in the order of the prompt; those that hold the answer are marked."""
    marked = (f"[{page}]{'*' * (page in outcome.question.documents)}" for page in answer.cited)
    return " ".join(dict.fromkeys(marked)) or "nothing cited"


def print_kinds(console: Console, outcomes: Sequence[Outcome]) -> None:
    table = Table(title="right answers by kind of question")
    for heading in ("kind", "full prefill", "kvstitch"):
        table.add_column(heading)
    for kind in KINDS:
        mine = [outcome for outcome in outcomes if outcome.question.kind == kind]
        if mine:
            full, ours, _ = counts(mine)
            table.add_row(kind, f"{full}/{len(mine)}", f"{ours}/{len(mine)}")
    console.print(table)


def counts(outcomes: Sequence[Outcome]) -> tuple[int, int, int]:
    """Right by full prefill, right by the default, same text."""
    return (
        sum(o.question.is_right(o.full.text) for o in outcomes),
        sum(o.question.is_right(o.ours.text) for o in outcomes),
        sum(o.same for o in outcomes),
    )


def summary(outcomes: Sequence[Outcome]) -> str:
    """What the questions came to, in one line."""
    full, ours, same = counts(outcomes)
    asked = len(outcomes)
    times = median(o.full.ttft for o in outcomes), median(o.ours.ttft for o in outcomes)
    return (
        f"right: full prefill {full}/{asked}, kvstitch {ours}/{asked}; same text {same}/{asked}; "
        f"first word (median) {times[0]:.2f} and {times[1]:.2f} s, "
        f"{median(o.ratio for o in outcomes):.2f} of full prefill's"
    )


def costs(outcomes: Sequence[Outcome], seconds: float, stored_bytes: int, pages: int) -> str:
    """What precomputing took, and after how many questions it has paid, in one line."""
    saved = median(o.full.ttft - o.ours.ttft for o in outcomes)
    took = f"precomputing {pages} pages: {seconds:.0f} s and {stored_bytes / 2**30:.2f} GiB, once"
    if saved <= 0:
        return f"{took}; on this machine it saves nothing"
    return f"{took}; {saved:.2f} s saved a question: paid after {math.ceil(seconds / saved)}"
