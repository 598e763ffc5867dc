"""Which sentence is counted, and what is counted as right."""

from __future__ import annotations

from pathlib import Path

from benchmarks.attribution.__main__ import answering_sentence, figures, samples, supported
from benchmarks.attribution.asking import Case, SourcePassage, append, read
from service.gateway.api import SupportScorer

CASE = Case(
    "nq",
    "What is the capital of Norway?",
    ("Oslo",),
    "It is a city. The capital of Norway is Oslo.",
    (
        SourcePassage("Rome", "Rome is the capital of Italy.", False),
        SourcePassage("Norway", "Its capital is Oslo. It has fjords.", True),
    ),
)


def test_the_sentence_with_the_answer_is_counted() -> None:
    span = answering_sentence(CASE)
    assert span is not None
    assert CASE.text[span.start : span.stop] == "The capital of Norway is Oslo."


def test_figures_count_the_passage_that_answers() -> None:
    def words(case: Case, span: range) -> list[float]:
        scorer = SupportScorer([(p.title, p.text) for p in case.passages], case.question)
        return [s.score for s in scorer.scores(case.text[span.start : span.stop])]

    found = samples([CASE], {"words": words, "first": lambda case, span: [1.0, 0.5]})
    rows = {row["method"]: row for row in figures(found)}
    assert rows["words"]["gold"]["mean"] == 1 and rows["first"]["gold"]["mean"] == 0
    assert rows["words"]["by_chance"] == 0.5 and rows["words"]["sentences"] == 1
    assert supported([CASE], "", without_gold=False) == [1.0]
    assert supported([CASE], "", without_gold=True) == [0.0]


def test_answers_are_kept_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    append(path, CASE)
    append(path, CASE)
    assert read(path) == [CASE, CASE]
