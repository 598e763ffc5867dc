"""Tables and lines of a demo run, as a pipe gets them, from answers that are given."""

import io

import pytest
from rich.console import Console

from demo.client import Answer
from demo.questions import DemoQuestion
from demo.report import citations, costs, print_answers, print_kinds, summary
from demo.scenario import Outcome

ZEBRA = DemoQuestion("Which animal?", ("zebra",), ("botswana",))
MALTA = DemoQuestion("Which has more?", ("Malta",), ("a", "b"), "comparison", ("Iceland",))
CITED = ("oman", "botswana", "oman")


def outcome(question: DemoQuestion, full: str, ours: str, ttft: float = 0.2) -> Outcome:
    return Outcome(question, Answer(full, 1.0, CITED), Answer(ours, ttft, CITED))


MIXED = [
    outcome(ZEBRA, "The zebra.", "The zebra."),
    outcome(ZEBRA, "The zebra.", "The lion.", 0.3),
    outcome(MALTA, "Malta has more.", "Malta has fewer.", 0.4),
]


def printed(*, long: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, width=150)
    print_answers(console, MIXED, long=long)
    print_kinds(console, MIXED)
    return out.getvalue()


def test_the_short_table_has_answers_and_times() -> None:
    text = printed(long=False)
    for shown in ("Which animal?", "✓ the same", "✗ The lion.", "1.00 → 0.30 s  ×0.30"):
        assert shown in text
    assert "[oman]" not in text and "\x1b" not in text


def test_the_long_table_has_expected_answers_citations_and_kinds() -> None:
    text = printed(long=True)
    for shown in ("[oman] [botswana]*", "zebra", "single", "2/2", "1/2", "comparison", "0/1"):
        assert shown in text


def test_citations_are_named_once_and_the_source_is_marked() -> None:
    assert citations(MIXED[0], MIXED[0].full) == "[oman] [botswana]*"
    assert citations(MIXED[0], Answer("x", 0.1, ())) == "nothing cited"


def test_the_summary_counts_right_and_same_answers_and_takes_medians() -> None:
    assert summary(MIXED) == (
        "right: full prefill 3/3, kvstitch 1/3; same text 1/3; "
        "first word (median) 1.00 and 0.30 s, 0.30 of full prefill's"
    )


@pytest.mark.parametrize(
    ("ttft", "end"), [(0.3, "0.70 s saved a question: paid after 58"), (1.5, "saves nothing")]
)
def test_costs_say_after_how_many_questions_they_have_paid(ttft: float, end: str) -> None:
    line = costs([outcome(ZEBRA, "x", "x", ttft)], 40.3, 3 << 29, 64)
    assert line.startswith("precomputing 64 pages: 40 s and 1.50 GiB, once;")
    assert line.endswith(end)
