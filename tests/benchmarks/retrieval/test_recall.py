"""The recall benchmark: its figures by hand, its questions from real data, and a run of its own
over the retriever."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.retrieval.musique import passage_id, read
from benchmarks.retrieval.recall import (
    DEPTH,
    MODES,
    Found,
    answerable,
    figures,
    hybrid_holds,
    measure,
    report,
)

SLICE = Path(__file__).parents[2] / "data" / "musique_slice.jsonl"


def found(question: str, mode: str, chunks: list[str]) -> Found:
    return Found(question, mode, ["a", "b"], {k: chunks[:k] for k in (5, 10, DEPTH)})  # type: ignore[arg-type]


def test_figures_by_hand() -> None:
    """Passages are counted once, chunks as they come; a question's own passages are all wanted."""
    spread = ["a", "a", "a", "a", "a", "b", "x"]
    late = [f"x{n}" for n in range(8)] + ["b", "a"]
    rows = figures(
        [
            *(found("1", mode, spread) for mode in MODES),
            *(found("2", mode, late if mode == "hybrid" else []) for mode in MODES),
        ]
    )
    by = {(row["mode"], row["k"]): row for row in rows}
    assert by["dense", 5]["recall"]["mean"] == 0.5  # question 1 whole, question 2 nothing
    assert by["dense", 5]["hit"]["mean"] == 0.5
    assert by["dense", 5]["first_chunks"]["recall"]["mean"] == 0.25
    assert by["hybrid", 10]["recall"]["mean"] == 1.0
    assert by["hybrid", 10]["less_sparse"]["mean"] == 0.5
    assert "less_dense" not in by["sparse", 10]
    assert hybrid_holds(rows)
    by["hybrid", 5]["recall"]["mean"] = 0.49
    assert not hybrid_holds(rows)


def test_a_question_counts_if_a_passage_holds_its_answer(tmp_path: Path) -> None:
    rows = [
        {"question": "one", "answers": ["Conga"], "passages": ["the conga drum", "congas", "x"]},
        {"question": "none", "answers": ["£23"], "passages": ["£234", "y"]},
        {"question": "two", "answers": ["no", "St. John"], "passages": ["in st. john.", "no"]},
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    questions = answerable(path)
    assert [(q.text, q.wanted) for q in questions] == [
        ("one", frozenset({passage_id("the conga drum")})),
        ("two", frozenset({passage_id("in st. john."), passage_id("no")})),
    ]
    assert [document["text"] for document in read(path)[1]][:2] == ["the conga drum", "congas"]


@pytest.mark.slow
@pytest.mark.parametrize("chunk_tokens", [128])
async def test_real_passages_through_the_library(chunk_tokens: int) -> None:
    args = Namespace(data=SLICE, url=None, library=True, api_key=None, chunk_tokens=chunk_tokens)
    record = await measure(args)
    assert record["documents"] == 50 and record["chunks"] > 150
    assert len(record["samples"]) == record["questions"] * len(MODES)
    by = {(row["mode"], row["k"]): row["recall"]["mean"] for row in record["figures"]}
    assert all(by[mode, 10] > 0.5 for mode in MODES)  # chance is 0.2
    assert all(by[mode, 5] <= by[mode, 10] for mode in MODES)
    text = report(json.loads(json.dumps(record)))
    assert f"| hybrid | 10 | {by['hybrid', 10]:.3f} [" in text
