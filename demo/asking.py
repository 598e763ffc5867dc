"""Ingests a scenario's documents and asks its questions under every method."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo.client import Answer, Client
from demo.outcome import Outcome
from demo.questions import DemoQuestion
from demo.scenario import Method, Scenario


def ingest(console: Console, client: Client, scenario: Scenario) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(f"precomputing {len(scenario.documents)} documents", total=None)
        for done, total in client.precompute(scenario.documents):
            bar.update(task, completed=done, total=total)
        task = bar.add_task("storing the second copy of each passage", total=None)
        client.wait_complete()
        bar.update(task, completed=1, total=1)


def ask(client: Client, scenario: Scenario, question: DemoQuestion, method: Method) -> Answer:
    return client.ask(
        question.question,
        method.name,
        top_k=scenario.top_k,
        fusion=method.fusion,
        **scenario.request,
    )


def ask_all(
    console: Console, client: Client, scenario: Scenario, count: int | None
) -> list[Outcome]:
    """Asks every question under every method.

    The order of methods rotates from question to question, so that none always comes first.
    """
    warm_up, questions = scenario.draw(count)
    methods = scenario.methods
    for method in methods:
        ask(client, scenario, warm_up, method)
    outcomes = []
    columns = (TextColumn("asking"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        for index, question in enumerate(bar.track(questions)):
            turned = methods[index % len(methods) :] + methods[: index % len(methods)]
            answers = {m: ask(client, scenario, question, m) for m in turned}
            outcomes.append(Outcome(question, answers))
    return outcomes
