"""Tables, picture and verdict of a demo run, from answers that are given."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from demo.client import Answer
from demo.outcome import Figures, Outcome, problems
from demo.picture import draw
from demo.report import citations, print_answers, print_kinds, print_summary
from demo.scenario import BASELINE, Scenario, small

SCENARIO = small()
QUESTION = SCENARIO.questions[0]
PNG = b"\x89PNG\r\n\x1a\n"


def outcome(scenario: Scenario, full: str, compared: str) -> Outcome:
    texts = dict.fromkeys(scenario.methods, full) | {scenario.compared: compared}
    ttft = dict.fromkeys(scenario.methods, 0.2) | {scenario.compared: 0.05}
    cited = ("firm-01", *QUESTION.documents, "firm-01")
    answers = {m: Answer(texts[m], ttft[m], cited, {}) for m in scenario.methods}
    return Outcome(QUESTION, answers)


@pytest.fixture
def mixed() -> list[Outcome]:
    right = QUESTION.expected
    return [
        outcome(SCENARIO, right, right),
        outcome(SCENARIO, right, "otherwise"),
        outcome(SCENARIO, "wrong", "wrong"),
    ]


def test_figures_count_right_and_same_answers(mixed: list[Outcome]) -> None:
    figures = Figures.of(mixed, SCENARIO.compared)
    assert (figures.asked, figures.right, figures.same) == (3, 1, 2)
    assert figures.ratio == pytest.approx(0.25)
    assert Figures.of(mixed, BASELINE).right == 2


def test_problems_are_said(mixed: list[Outcome]) -> None:
    fine = [mixed[0]] * 20
    assert problems(fine, SCENARIO) == []
    assert problems([mixed[2]] * 20, SCENARIO) == ["only 0 of 20 right with full prefill"]
    found = problems([*fine, *[mixed[1]] * 3], SCENARIO)
    assert found == ["a3 0.15 has 20 right where full prefill has 23"]


def test_questions_that_are_not_answerable_are_not_held_against_a_run(
    mixed: list[Outcome],
) -> None:
    hard = replace(mixed[2], question=replace(QUESTION, answerable=False))
    assert problems([*[mixed[0]] * 20, *[hard] * 20], SCENARIO) == []


def test_citations_are_named_once_and_the_source_is_marked() -> None:
    given = outcome(SCENARIO, "x", "x")
    assert citations(QUESTION, given.answers[BASELINE]) == "[firm-01] [person-01]*"
    assert citations(QUESTION, Answer("x", 0.1, (), {})) == "nothing cited"


def test_tables_show_answers_and_figures(mixed: list[Outcome]) -> None:
    out = io.StringIO()
    console = Console(file=out, width=200)
    print_answers(console, mixed, SCENARIO)
    print_kinds(console, mixed, SCENARIO)
    print_summary(console, mixed, SCENARIO)
    text = out.getvalue()
    for shown in (QUESTION.question, "otherwise", "the same", "200 ms", "×0.25", "2/3", "0.25"):
        assert shown in text
    assert "by kind" not in text  # all are of one kind


def test_the_picture_is_a_png_at_the_named_path(tmp_path: Path, mixed: list[Outcome]) -> None:
    path = tmp_path / "new" / "picture.png"
    draw(path, mixed, SCENARIO)
    assert path.read_bytes().startswith(PNG)
