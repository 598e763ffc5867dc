"""Scores against values worked out by hand, against what LongBench's `metrics.py` gave with
fuzzywuzzy 0.18.0 + python-Levenshtein 0.27.5, and against what must hold for any text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.quality.sample import Sample, TextSample
from benchmarks.quality.scores import METRICS, score
from service.errors import InvalidRequest

WORDS = ["the", "The", "cat", "cats.", "sat", ".", "a", "3", "12", "Paragraph", "\n", "\x07", "//"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)


# -- references as they are -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "text", "references", "expected"),
    [
        ("exact", " Paris\n", ["paris", "Paris"], 1),
        ("exact", "Paris.", ["Paris"], 0),
        # Of two, one occurs; of one given twice, the half that is missing is half of the score.
        ("string_match_all", "the numbers: 12, 34", ["12", "56"], 1 / 2),
        ("string_match_all", "ALICE and Bob", ["Alice", "bob"], 1),
        ("string_match_part", "ALICE and Bob", ["carol", "bob"], 1),
        ("string_match_part", "Alice", ["carol", "bob"], 0),
        # \t becomes a line break, so a reference with one is found and one with a tab is not.
        ("string_match_part", "New\tYork", ["new\nyork"], 1),
        ("string_match_part", "New\tYork", ["new\tyork"], 0),
        # Space around goes, and control characters that were there with it.
        ("string_match_part", " \x07York", ["\nyork"], 0),
    ],
)
def test_matches(metric: str, text: str, references: list[str], expected: float) -> None:
    assert score(metric, text, references) == expected


# -- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        # eiffel tower in paris / eiffel tower: P = 2/4, R = 1, F = 2 · ½ / 1½
        ("The Eiffel Tower, in Paris.", "Eiffel tower", 2 / 3),
        ("an answer", "the Answer!", 1),
        ("yes", "no", 0),
        # Punctuation goes before articles: its dogs / its dogs
        ("it's the dog's", "its dogs", 1),
        # a is an article; b b c / b b b: P = R = 2/3
        ("a b b c", "b b b", 2 / 3),
        # Nothing is left of either.
        ("the", "a", 0),
    ],
)
def test_qa_f1(text: str, reference: str, expected: float) -> None:
    assert score("qa_f1", text, [reference]) == pytest.approx(expected)


def test_the_best_reference_counts() -> None:
    assert score("qa_f1", "Eiffel tower", ["Louvre", "Eiffel tower", "tower"]) == 1


# -- numbers and classes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "text", "reference", "expected"),
    [
        ("count", "There are 7 unique, of 10; so 7.", "7", 2 / 3),
        ("count", "07", "7", 0),
        ("count", "seven", "7", 0),
        ("retrieval", "Paragraph 7", "Paragraph 7", 1),
        ("retrieval", "Paragraph 7 or Paragraph 8", "Paragraph 7", 1 / 2),
        ("retrieval", "17", "Paragraph 7", 0),
    ],
)
def test_numbers(metric: str, text: str, reference: str, expected: float) -> None:
    assert score(metric, text, [reference]) == expected


@pytest.mark.parametrize(
    ("text", "right", "classes", "expected"),
    [
        ("Type: Food", "Food", ["Food", "Date"], 1),
        ("Food or Date", "Food", ["Food", "Date"], 1 / 2),
        ("Date", "Food", ["Food", "Date"], 0),
        # Named are Date, Date of birth and Human; Date is part of the right one and does not count.
        ("Date of birth, or Human", "Date of birth", ["Date", "Date of birth", "Human"], 1 / 2),
        # A goes, so B is stepped over and stays, C goes: B and "A B C" are left.
        ("A B C", "A B C", ["A", "B", "C", "A B C"], 1 / 2),
    ],
)
def test_classification(text: str, right: str, classes: list[str], expected: float) -> None:
    assert score("classification", text, [right], classes) == expected


# -- edit similarity ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        # LCS "    return self." is 16 of 17 and 21 characters: 32 / 38 = 0.842
        ("    return self.x", "    return self.y + 1", 0.84),
        # The line with ``` is passed over; official: 61.
        ("```python\nfor i in range(n):\n", "for item in items:", 0.61),
        ("\n\n# note\nx = 1 // 2\nself.assertEqual(a, b)", "assert a == b", 0.51),
        # LCS "ie" or "de": 4 / 8. difflib, without python-Levenshtein: 0.25.
        ("tide", "diet", 0.5),
        # LCS "ab": 4 / 7. difflib: 0.29.
        ("cadb", "abc", 0.57),
        # 17 of 40 and 40: 42.5 rounds up, as 1 - 46 / 80 is a little more than it should be.
        ("a" * 17 + "b" * 23, "a" * 17 + "c" * 23, 0.43),
        ("# only a comment", "x", 0),
        ("# only a comment", "", 1),
    ],
)
def test_edit_similarity(text: str, reference: str, expected: float) -> None:
    assert score("edit_similarity", text, [reference]) == expected


@settings(max_examples=100, deadline=None)
@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_edit_similarity_of_the_longest_common_subsequence(a: str, b: str) -> None:
    @cache
    def common(i: int, j: int) -> int:
        if not i or not j:
            return 0
        step = common(i - 1, j - 1) + (a[i - 1] == b[j - 1])
        return max(step, common(i - 1, j), common(i, j - 1))

    ratio = 2 * common(len(a), len(b)) / (len(a) + len(b)) if a or b else 1.0
    assert score("edit_similarity", a, [b]) == pytest.approx(ratio, abs=0.0051)
    assert score("edit_similarity", b, [a]) == score("edit_similarity", a, [b])


# -- the first line -------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["qa_f1", "rouge_l"])
def test_the_first_line_behind_line_breaks(metric: str) -> None:
    text = "\n\nParis\nQuestion: where is Rome?"
    assert score(f"{metric}_first_line", text, ["Paris"]) == pytest.approx(1)
    assert 0 < score(metric, text, ["Paris"]) < 0.5
    assert score(f"{metric}_first_line", " \nParis", ["Paris"]) == 0


def test_the_first_line_names_the_class() -> None:
    arguments: tuple[str, Sequence[str], Sequence[str]]
    arguments = ("Food\nType: Date", ["Food"], ["Food", "Date"])
    assert score("classification_first_line", *arguments) == 1
    assert score("classification", *arguments) == 1 / 2


# -- any text -------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
def test_scores_are_shares(text: str, references: list[str]) -> None:
    for metric in METRICS:
        these = ["Paragraph 3"] if metric == "retrieval" else references
        assert 0 <= score(metric, text, these, classes=WORDS) <= 1


@settings(max_examples=50, deadline=None)
@given(TEXTS)
def test_a_text_answers_itself(words: str) -> None:
    text = f"Paragraph 12 cat {words}".strip()
    for metric in ("exact", "qa_f1", "rouge_l", "rouge1"):
        assert score(metric, text, ["something", text]) == pytest.approx(1)
    shown = text.replace("\x07", "\n").replace("//", "").strip()
    for metric in ("string_match_all", "string_match_part"):
        assert score(metric, shown, [shown]) == 1
    line = shown.replace("\n", "")
    assert score("edit_similarity", line, [line]) == 1


@settings(max_examples=50, deadline=None)
@given(TEXTS, TEXTS)
def test_f1_scores_are_symmetric(a: str, b: str) -> None:
    for metric in ("qa_f1", "rouge1"):
        assert score(metric, a, [b]) == score(metric, b, [a])


# -- requests that are wrong ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "references", "field"),
    [
        ("bleu", ["x"], "metric"),
        ("qa_f1", [], "references"),
        ("retrieval", ["7"], "references"),
        ("classification", ["x"], "classes"),
    ],
)
def test_what_cannot_be_scored(metric: str, references: list[str], field: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        score(metric, "x", references)
    assert error.value.field == field


def test_classes_are_part_of_a_samples_key() -> None:
    def key(*classes: str) -> str:
        text = TextSample(
            "longbench", "trec", 0, "S", "D", "Q", ("Food",), "classification", 64, classes=classes
        )
        return Sample(text, (1,), ((2,),), (3,)).key

    assert key("Food", "Date") == key("Food", "Date")
    assert len({key(), key("Food"), key("Food", "Date")}) == 3
