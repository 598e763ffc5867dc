"""Sentences as spans, words in comparable form, marks in and out of a text."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstitch.records.answers import Attribution
from kvstitch.service.gateway.answers.attributor import marks_in, with_marks, without_marks
from kvstitch.service.gateway.answers.support import sentences, words


def split(text: str) -> list[str]:
    return [text[span.start : span.stop] for span in sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two!  Three?", ["One.", "Two!", "Three?"]),
        ("Dr. Crane met St. Wilfrid.", ["Dr. Crane met St. Wilfrid."]),
        ("It costs 6.50 euros. Really.", ["It costs 6.50 euros.", "Really."]),
        ('He said "no." Then he left.', ['He said "no."', "Then he left."]),
        ("- first\n- second\n\n", ["- first", "- second"]),
        ("Oslo.[1] Rome. [2, 3] Bern", ["Oslo.[1]", "Rome. [2, 3]", "Bern"]),
        ("東京です。大阪です。", ["東京です。", "大阪です。"]),
        ("And so… it ends", ["And so…", "it ends"]),
        (" ... ! ", []),
        ("", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert split(text) == expected


@settings(deadline=None)
@given(st.text(alphabet="ab A.!?\n[1,2]\u3002\"' ", max_size=80))
def test_sentences_lie_in_order_and_hold_every_letter(text: str) -> None:
    spans = sentences(text)
    assert all(a.stop <= b.start for a, b in pairwise(spans))
    inside = {place for span in spans for place in span}
    assert all(place in inside for place, char in enumerate(text) if char.isalnum())
    for span in spans:
        piece = text[span.start : span.stop]
        assert piece and piece == piece.strip()


@pytest.mark.parametrize("text", ["." * 100_000, "[1] " * 25_000, ". [1" * 25_000, "a." * 50_000])
def test_hostile_texts_take_linear_time(text: str) -> None:
    started = time.process_time()
    sentences(text)
    marks_in(text)
    assert time.process_time() - started < 2


def test_words_compare_across_case_accents_endings_and_commas() -> None:
    assert words("Étienne's CLOCKS cost 14,300 euros") == words("etienne s clock costs 14300 euro")
    assert words("6.50") == ["6.50"] and words("18,000") == ["18000"]
    assert words("漢字検索") == ["漢字", "字検", "検索"] and words("字") == ["字"]
    assert words("baked") == words("bakes") == words("baking") == words("bake")


def test_marks_are_found_removed_and_put_in() -> None:
    assert marks_in("Oslo [1], and Rome [3, 1].") == [1, 3]
    assert marks_in("[a] [] array[0x1] [1-2]") == []
    assert without_marks("Oslo [1]. Rome[2].") == "Oslo. Rome."
    text = 'Oslo lies there.  He said "no." Perhaps'
    attributions = [
        Attribution(start=span.start, end=span.stop, citations=cited, score=1.0, by="words")
        for span, cited in zip(sentences(text), ([1], [2, 3], []), strict=True)
    ]
    marked, moved = with_marks(text, attributions)
    assert marked == 'Oslo lies there [1].  He said "no [2, 3]." Perhaps'
    assert [marked[each.start : each.end] for each in moved] == [
        "Oslo lies there [1].", 'He said "no [2, 3]."', "Perhaps",
    ]  # fmt: skip
    assert without_marks(marked) == text


@pytest.mark.parametrize("fence", ["```", "~~~~"])
def test_code_between_fences_gets_no_marks(fence: str) -> None:
    text = f"Run this.\n{fence}sh\nls -l\nmake demo.\n{fence}\nIt serves."
    attributions = [
        Attribution(start=span.start, end=span.stop, citations=[1], score=1.0, by="words")
        for span in sentences(text)
    ]
    marked, _ = with_marks(text, attributions)
    assert marked == text.replace("this.", "this [1].").replace("serves.", "serves [1].")
    unclosed, _ = with_marks(text[: text.rindex(fence)], attributions[:-1])
    assert unclosed.count("[1]") == 1
