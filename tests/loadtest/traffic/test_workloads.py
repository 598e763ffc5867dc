from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from loadtest.traffic.corpus_reader import CorpusQuestion, read_documents, read_questions
from loadtest.traffic.routes import CorpusDocument
from loadtest.traffic.trace_replay import TraceBlocks, read_trace
from loadtest.traffic.workloads import Permutator, Zipf, long_document

DOCUMENTS = [CorpusDocument(f"d{n}", f"Title {n}", f"Fact {n}. Also {n} plus.") for n in range(20)]
QUESTIONS = [CorpusQuestion(f"What of {n}?", f"d{n}") for n in range(20)]


def first(workload: Zipf | Permutator, count: int, seed: int = 1) -> list[tuple[str, ...]]:
    return [
        tuple(document.doc_id for document in request.documents)
        for request in itertools.islice(workload.requests(seed), count)
    ]


def test_a_seed_is_a_workload() -> None:
    zipf = Zipf(DOCUMENTS, QUESTIONS, 5)
    assert first(zipf, 50) == first(zipf, 50) != first(zipf, 50, seed=2)


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0, 1.2])
def test_popularity_follows_zipf(alpha: float) -> None:
    """Of single draws: rank i comes with a share of i^-alpha / sum, within four standard errors."""
    drawn = Counter(chosen for (chosen,) in first(Zipf(DOCUMENTS, QUESTIONS, 1, alpha), 20_000))
    weights = [rank**-alpha for rank in range(1, 21)]
    counts = [count for _, count in drawn.most_common()]
    for rank in (0, 1, 4) if alpha else ():
        share = weights[rank] / sum(weights)
        error = (share * (1 - share) / 20_000) ** 0.5
        assert abs(counts[rank] / 20_000 - share) < 5 * error
    if not alpha:
        assert max(counts) < 1.2 * min(counts)
    again = Counter(chosen for (chosen,) in first(Zipf(DOCUMENTS, QUESTIONS, 1, alpha), 20_000, 2))
    if alpha:
        assert again.most_common(1)[0][0] == drawn.most_common(1)[0][0]


def test_documents_are_different_and_shuffled() -> None:
    shuffled = first(Zipf(DOCUMENTS, QUESTIONS, 5, 1.2), 200)
    assert all(len(set(chosen)) == 5 for chosen in shuffled)
    assert len({frozenset(chosen) for chosen in shuffled}) < len(set(shuffled))
    fixed = first(Zipf(DOCUMENTS, QUESTIONS, 5, 1.2, shuffled=False), 200)
    assert all(list(chosen) == sorted(chosen, key=lambda d: int(d[1:])) for chosen in fixed)


def test_the_question_is_about_a_document_sent() -> None:
    for request in itertools.islice(Zipf(DOCUMENTS, QUESTIONS, 4).requests(1), 50):
        asked = next(q.doc_id for q in QUESTIONS if q.text == request.question)
        assert asked in {document.doc_id for document in request.documents}


def test_searching_sends_the_question_alone() -> None:
    request = next(Zipf(DOCUMENTS, QUESTIONS, 4, search=True).requests(1))
    assert request.documents == () and request.question


def test_the_permutator_asks_each_order_once_a_round() -> None:
    permutator = Permutator(DOCUMENTS[:4], QUESTIONS, permutations=10, system="Be brief.")
    orders = first(permutator, 30)
    assert len(set(orders[:10])) == 10 and orders[:10] == orders[10:20] == orders[20:]
    assert all(set(order) == {"d0", "d1", "d2", "d3"} for order in orders)
    assert next(permutator.requests(1)).system == "Be brief."
    with pytest.raises(ValueError, match="6"):
        Permutator(DOCUMENTS[:3], QUESTIONS, permutations=7)


def test_more_documents_than_there_are() -> None:
    with pytest.raises(ValueError, match="the corpus has 20"):
        Zipf(DOCUMENTS, QUESTIONS, 21)


def test_a_made_document_is_its_name() -> None:
    made = long_document(DOCUMENTS, "block-7", 50)
    assert len(made.text.split()) == 50 and made == long_document(DOCUMENTS, "block-7", 50)
    assert made.text != long_document(DOCUMENTS, "block-8", 50).text


def trace_file(folder: Path, *rows: object) -> Path:
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_trace_is_replayed_in_the_order_of_its_times(tmp_path: Path) -> None:
    file = trace_file(
        tmp_path,
        {"timestamp": 9000, "question": "last", "doc_ids": ["d2", "d1"], "max_tokens": 4},
        {"timestamp": 5000, "question": "first"},
        {"timestamp": 6000, "question": "tie, before"},
        {"timestamp": 6000, "question": "tie, behind"},
    )
    trace = read_trace(file, DOCUMENTS, QUESTIONS, speed=2.0, max_tokens=8)
    assert [item.at_s for item in trace.scheduled] == [0.0, 0.5, 0.5, 2.0]
    asked = [item.request for item in trace.scheduled]
    assert [r.question for r in asked] == ["first", "tie, before", "tie, behind", "last"]
    assert [d.doc_id for d in asked[3].documents] == ["d2", "d1"]
    assert [r.max_tokens for r in asked] == [8, 8, 8, 4]


def test_mooncakes_blocks_are_shared_where_the_trace_shares_them(tmp_path: Path) -> None:
    file = trace_file(
        tmp_path,
        {"timestamp": 0, "input_length": 1500, "output_length": 500, "hash_ids": [0, 1, 2]},
        {"timestamp": 27000, "input_length": 1000, "output_length": 3, "hash_ids": [0, 14]},
    )
    blocks = TraceBlocks(words=30, most=2)
    trace = read_trace(file, DOCUMENTS, QUESTIONS, max_tokens=16, blocks=blocks)
    long, short = (item.request for item in trace.scheduled)
    assert [d.doc_id for d in long.documents] == ["block-0", "block-1"]
    assert long.documents[0] == short.documents[0] != short.documents[1]
    assert (long.max_tokens, short.max_tokens) == (16, 3)
    assert trace.shortened == 1 and trace.describe()["shortened"] == 1


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "when?"}, "`timestamp` in ms is missing"),
        ({"timestamp": 1, "doc_ids": ["nobody"]}, "does not have: nobody"),
        ([1], "an object is expected"),
    ],
)
def test_a_wrong_trace_is_an_error_that_names_the_line(
    tmp_path: Path, row: object, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        read_trace(trace_file(tmp_path, row), DOCUMENTS, QUESTIONS)


def test_corpora_are_folders_or_lines(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "b.md").write_text("# Title B\n\nText.\n")
    (folder / "a.md").write_text("# Title A\nText.")
    assert read_documents(folder) == [
        CorpusDocument("a", "Title A", "Text."),
        CorpusDocument("b", "Title B", "Text."),
    ]
    lines = tmp_path / "corpus.jsonl"
    lines.write_text('{"doc_id": "x", "title": "X", "text": "Text."}\n\n{"text": "Nameless."}\n')
    assert [d.doc_id for d in read_documents(lines)] == ["x", "document-2"]
    lines.write_text('{"question": "Why?"}\n')
    assert read_questions(lines) == [CorpusQuestion("Why?")]
    lines.write_text("nonsense\n")
    with pytest.raises(ValueError, match="line 1: no JSON"):
        read_questions(lines)
    with pytest.raises(ValueError, match="no documents"):
        read_documents(tmp_path)
