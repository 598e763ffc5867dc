"""RULER's question answering: gold documents among distractors, from the published files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality.ruler import generate
from benchmarks.quality.sample import TextSample
from service.errors import InvalidRequest


def count(text: str) -> int:
    return len(text.split())


def article(name: str, paragraphs: int) -> dict[str, Any]:
    def question(n: int, possible: bool) -> dict[str, Any]:
        answers = [{"text": f"{name}{n}"}, {"text": f"{name}{n}"}, {"text": f"the {name}{n}"}]
        return {
            "question": f"Where is {name} {n}?",
            "answers": answers if possible else [],
            "is_impossible": not possible,
        }

    return {
        "title": name,
        "paragraphs": [
            {
                "context": f"{name} {n} is at {name}{n}.",
                "qas": [question(n, False), question(n, True)],
            }
            for n in range(paragraphs)
        ],
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    published = {"version": "v2.0", "data": [article("alder", 4), article("birch", 30)]}
    (tmp_path / "dev-v2.0.json").write_text(json.dumps(published))
    rows = [
        {
            "question": f"Who met at {n}?",
            "answer": f"guest {n}",
            "context": [[f"T{n}{p}", [f"First of {n}{p}.", f" Second of {n}{p}."]] for p in "abcd"],
            "supporting_facts": [[f"T{n}b", 0], [f"T{n}d", 1]],
        }
        for n in range(9)
    ]
    (tmp_path / "hotpot_dev_distractor_v1.json").write_text(json.dumps(rows))
    return tmp_path


def samples(task: str, data: Path | None, length: int, number: int = 4) -> list[TextSample]:
    return list(generate(task, count=count, length=length, samples=number, data=data))


def documents(sample: TextSample) -> list[str]:
    parts = re.split(r"(?:^|\n\n)Document (\d+):\n", sample.context)
    assert parts[0] == ""
    assert [int(n) for n in parts[1::2]] == list(range(1, len(parts) // 2 + 1))
    assert len(parts) // 2 == sample.details["size"]
    return parts[2::2]


def test_the_prompt_letter_by_letter(data: Path) -> None:
    (sample,) = samples("qa_1", data, 90, number=1)
    prompt = sample.instruction + sample.context + sample.question + sample.answer_prefix
    assert prompt == (
        "Answer the question based on the given documents. Only give me the answer and do not "
        "output any other words.\n\nThe following are given documents.\n\n"
        "Document 1:\nalder 0 is at alder0.\n\n"
        "Answer the question based on the given documents. Only give me the answer and do not "
        "output any other words.\n\nQuestion: Where is alder 0? Answer:"
    )
    assert sample.references == ("alder0", "the alder0")
    assert sample.metric == "string_match_part"


def test_squad_takes_the_article_first_then_any(data: Path) -> None:
    places = set()
    for n, sample in enumerate(samples("qa_1", data, 139)):
        shown = documents(sample)
        gold = f"alder {n} is at alder{n}."
        assert sample.question.endswith(f"Question: Where is alder {n}?")
        assert gold in shown
        assert len(set(shown)) == len(shown) == 8
        assert sum(text.startswith("alder") for text in shown) == 4  # the whole article
        places.add(shown.index(gold))
    assert len(places) > 1
    for sample in samples("qa_1", data, 104):
        assert {text.split()[0] for text in documents(sample)} == {"alder"}


def test_hotpotqa_keeps_both_supporting_documents(data: Path) -> None:
    for length, size in ((101, 2), (119, 4), (146, 7)):
        for n, sample in enumerate(samples("qa_2", data, length)):
            shown = documents(sample)
            own = [f"T{n}{p}\nFirst of {n}{p}. Second of {n}{p}." for p in "abcd"]
            assert len(set(shown)) == len(shown) == size
            assert {own[1], own[3]} <= set(shown)
            assert set(own) <= set(shown) or size < 4
            assert sample.references == (f"guest {n}",)


def test_no_document_twice_where_documents_run_out(data: Path) -> None:
    for sample in samples("qa_1", data, 5000):
        assert len(set(documents(sample))) == sample.details["size"] == 34


@pytest.mark.parametrize(
    ("task", "name", "source"),
    [
        ("qa_1", "dev-v2.0.json", "https://rajpurkar.github.io/SQuAD-explorer/dataset/"),
        ("qa_2", "hotpot_dev_distractor_v1.json", "http://curtis.ml.cmu.edu/datasets/hotpot/"),
    ],
)
def test_a_missing_or_foreign_file_is_named(
    task: str, name: str, source: str, tmp_path: Path
) -> None:
    for data in (None, tmp_path):
        with pytest.raises(InvalidRequest, match=re.escape(name)) as caught:
            generate(task, count=count, length=500, samples=1, data=data)
        assert caught.value.field == "data"
        assert source in caught.value.message
    for foreign in ("no JSON", "[3]", '{"data": [{}]}', '{"data": 3}', '"text"'):
        (tmp_path / name).write_text(foreign)
        with pytest.raises(InvalidRequest, match="not in the format of") as caught:
            generate(task, count=count, length=500, samples=1, data=tmp_path)
        assert caught.value.field == "data"


def test_more_samples_than_questions_are_refused(data: Path) -> None:
    assert len(samples("qa_2", data, 200, number=9)) == 9
    with pytest.raises(InvalidRequest, match="only 9 questions"):
        samples("qa_2", data, 200, number=10)
