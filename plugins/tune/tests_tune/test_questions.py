"""Questions from sentences, and from files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvstitch.service.errors import InvalidRequest
from kvstitch_tune import questions
from tests_tune.model_folders import DOCUMENTS

TEXTS = list(DOCUMENTS.values())


def test_in_turns_about_something_and_to_be_completed() -> None:
    made = questions.of_passages(TEXTS, random.Random(1))
    assert len(made) == len(TEXTS)
    about, complete = made[::2], made[1::2]
    assert all(q.startswith("What do the documents say about") for q in about)
    text = " ".join(" ".join(TEXTS).split())
    for question in complete:
        beginning = question.partition(": ")[2].removesuffix(" …")
        assert beginning in text and 0 < len(beginning.split()) < 30
    assert made == questions.of_passages(TEXTS, random.Random(1))


def test_a_text_without_sentences_gives_none() -> None:
    assert questions.of_passages(["Too short.", "", "a | b | c"], random.Random(0)) == []


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "Who?", "answers": ["me"]}\n\n"Where?"\n')
    assert questions.of_file(path) == ["Who?", "Where?"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"question": "Who?"}\n', "two at least"),
        ('{"q": "Who?"}\n"Where?"', "line 1"),
        ('"Who?"\n{"question": " "}', "line 2"),
        ('"Who?"\n[1]', "line 2"),
        ("Who?", "line 1"),
    ],
)
def test_wrong_files_are_explained(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidRequest, match=said):
        questions.of_file(path)
