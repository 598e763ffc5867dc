"""The demo's table and verdict: answers, citations and times to first token per method."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from demo.client import Answer
from demo.make_corpus import Question

BASELINE = "vanilla"
"""Full prefill, with which the other methods are compared."""
MINIMUM_RIGHT = 16
MAXIMUM_DIFFERENCE = 1


@dataclass(frozen=True)
class Outcome:
    """One question and its answer under every method."""

    question: Question
    answers: dict[str, Answer]

    def right(self, method: str) -> bool:
        return self.answers[method].text == self.question.answer

    def ratio(self, method: str) -> float:
        """TTFT relative to full prefill of the same question."""
        return self.answers[method].ttft / self.answers[BASELINE].ttft


def print_table(console: Console, outcomes: list[Outcome], methods: tuple[str, ...]) -> None:
    """Prints one row per question: every method's answer, first citation, TTFT and TTFT ratio."""
    table = Table(title=f"{len(outcomes)} questions, time to first token at the client")
    table.add_column("question", ratio=3)
    table.add_column("expected", ratio=1)
    for method in methods:
        table.add_column(method, ratio=2)
        table.add_column("TTFT", justify="right", no_wrap=True)
    for outcome in outcomes:
        cells = [outcome.question.question, outcome.question.answer]
        for method in methods:
            answer = outcome.answers[method]
            colour, mark = ("green", "✓") if outcome.right(method) else ("red", "✗")
            cited = answer.cited[0] if answer.cited else "nothing cited"
            cells.append(f"[{colour}]{mark} {answer.text or '(nothing)'}[/] [dim]{cited}[/]")
            time = f"{answer.ttft * 1e3:.0f} ms"
            cells.append(time if method == BASELINE else f"{time} ×{outcome.ratio(method):.2f}")
        table.add_row(*cells)
    console.print(table)


def print_summary(console: Console, outcomes: list[Outcome], methods: tuple[str, ...]) -> None:
    table = Table(title="Summary (medians; ratio to full prefill, paired by question)")
    for heading in ("method", "right", "TTFT ms", "server TTFT ms", "ratio"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for method in methods:
        own = [o.answers[method].server_ttft for o in outcomes]
        known = [t for t in own if t is not None]
        table.add_row(
            "full prefill (vanilla)" if method == BASELINE else method,
            f"{num_right(outcomes, method)}/{len(outcomes)}",
            f"{median(o.answers[method].ttft for o in outcomes) * 1e3:.1f}",
            f"{median(known) * 1e3:.1f}" if known else "-",
            f"{median(o.ratio(method) for o in outcomes):.2f}",
        )
    console.print(table)
    console.print(
        "The demo model is tiny and its prompts are about 250 tokens: much of a TTFT here is the "
        "fixed cost of a request. The shape below has sizes at which prefill dominates."
    )


def num_right(outcomes: list[Outcome], method: str) -> int:
    return sum(outcome.right(method) for outcome in outcomes)


def problems(outcomes: list[Outcome], compared: str) -> list[str]:
    """Finds the reasons for which this demo run counts as failed.

    Returns:
        A sentence for each of: too few right answers with full prefill; clearly more or fewer right
        answers with `compared`. Empty where the run is fine.
    """
    full, reused = num_right(outcomes, BASELINE), num_right(outcomes, compared)
    found = []
    if full < MINIMUM_RIGHT:
        found.append(f"only {full} of {len(outcomes)} right with full prefill")
    if abs(full - reused) > MAXIMUM_DIFFERENCE:
        found.append(f"{compared} has {reused} right where full prefill has {full}")
    return found
