"""The demo's tables: sentences with citations, right answers by kind of question, figures."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from demo.client import Answer
from demo.outcome import Figures, Outcome
from demo.questions import KIND_NAMES, KINDS, DemoQuestion
from demo.scenario import BASELINE, Method, Scenario


def print_answers(console: Console, outcomes: Sequence[Outcome], scenario: Scenario) -> None:
    """Prints one row per question: full prefill's answer and the compared method's, with TTFT."""
    table = Table(
        title=f"{len(outcomes)} questions, time to first token at the client", show_lines=True
    )
    table.add_column("question", ratio=2)
    for method in (BASELINE, scenario.compared):
        table.add_column(method_name(method), ratio=3)
        table.add_column("TTFT", justify="right", no_wrap=True)
    for outcome in outcomes:
        asked = Text(outcome.question.question)
        asked.append(f"\n{outcome.question.expected}", style="dim")
        full, other = (outcome.answers[m] for m in (BASELINE, scenario.compared))
        table.add_row(
            asked,
            _answer(outcome, BASELINE),
            f"{full.ttft * 1e3:.0f} ms",
            _answer(outcome, scenario.compared),
            f"{other.ttft * 1e3:.0f} ms ×{outcome.ratio(scenario.compared):.2f}",
        )
    console.print(table)


def _answer(outcome: Outcome, method: Method) -> Text:
    answer = outcome.answers[method]
    colour, mark = ("green", "✓") if outcome.right(method) else ("red", "✗")
    shown = Text(f"{mark} ", style=colour)
    if method != BASELINE and outcome.same(method):
        shown.append("the same")
    else:
        shown.append(answer.text or "(nothing)")
    shown.append(f"\n{citations(outcome.question, answer)}", style="dim")
    return shown


def citations(question: DemoQuestion, answer: Answer) -> str:
    """The cited documents once each, in order; those that hold the answer are marked."""
    if not answer.cited:
        return "nothing cited"
    return " ".join(
        f"[{doc_id}]*" if doc_id in question.documents else f"[{doc_id}]"
        for doc_id in dict.fromkeys(answer.cited)
    )


def print_kinds(console: Console, outcomes: Sequence[Outcome], scenario: Scenario) -> None:
    """Prints right answers per kind of question, where there is more than one kind."""
    kinds = [kind for kind in KINDS if any(o.question.kind == kind for o in outcomes)]
    if len(kinds) < 2:
        return
    table = Table(title="Right answers by kind of question")
    table.add_column("kind")
    for method in scenario.methods:
        table.add_column(method_name(method), justify="right")
    for kind in kinds:
        mine = [o for o in outcomes if o.question.kind == kind]
        counts = [Figures.of(mine, method).right for method in scenario.methods]
        table.add_row(KIND_NAMES[kind], *(f"{count}/{len(mine)}" for count in counts))
    console.print(table)


def print_summary(console: Console, outcomes: Sequence[Outcome], scenario: Scenario) -> None:
    table = Table(title=f"{scenario.model_title}: medians, ratio paired by question")
    table.add_column("method")
    for heading in ("right", "same answer as full prefill", "TTFT", "of full prefill's"):
        table.add_column(heading, justify="right")
    for method in scenario.methods:
        figures = Figures.of(outcomes, method)
        table.add_row(
            method_name(method),
            f"{figures.right}/{figures.asked}",
            "-" if method == BASELINE else f"{figures.same}/{figures.asked}",
            f"{figures.ttft * 1e3:.0f} ms",
            f"{figures.ratio:.2f}",
        )
    console.print(table)


def method_name(method: Method) -> str:
    return "full prefill" if method == BASELINE else method.label
