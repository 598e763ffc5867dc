from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kvstitch.retriever import ChunkSettings, DocFilter, Document, LocalEmbedder, Retriever
from kvstitch.retriever.boundaries import TokenCounter
from kvstitch.retriever.errors import EmbedderMismatch, InvalidQuery, NotOpen
from kvstitch.retriever.filters import parse_filter
from kvstitch.retriever.index.vector_index import VectorIndex
from tests.fakes.models import HashingEmbedder
from tests.retriever.conftest import OpenRetriever, Question

ANIMALS = [
    Document("fox", "The red fox hunts at night.", "Fox", {"legs": 4}),
    Document("owl", "The owl hunts at night as well.", "Owl", {"legs": 2}),
    Document("whale", "The whale sings in the sea.", "Whale", {"legs": 0}),
]


def ids_in_index(retriever: Retriever) -> set[int]:
    assert isinstance(retriever.index, VectorIndex)
    return set(retriever.index.ids)


def ids_in_catalog(retriever: Retriever) -> set[int]:
    return set(retriever.catalog.chunk_ids(DocFilter()))


def test_real_questions_find_their_passages(
    questions: list[Question],
    minilm: LocalEmbedder,
    counters: dict[str, TokenCounter],
    tmp_path: Path,
) -> None:
    """Recall@5 over fifty passages: each question has ten passages of its own."""
    retriever = Retriever.in_folder(tmp_path, minilm, ChunkSettings(counters["bytes"], 256))
    retriever.start()
    documents = [
        Document(f"{number}/{place}", passage)
        for number, question in enumerate(questions)
        for place, passage in enumerate(question.passages)
    ]
    results = retriever.ingest(documents)
    assert {result.status for result in results} == {"created"}
    hits = [
        [passage.chunk.doc_id.startswith(f"{number}/") for passage in passages]
        for number, question in enumerate(questions)
        for passages in [retriever.search(question.text, 5)]
    ]
    assert all(any(found) for found in hits)
    assert sum(map(sum, hits)) / 25 >= 0.8  # chance is 0.2

    for document in documents:
        chunks = retriever.catalog.chunks_of(document.doc_id)
        assert "".join(chunk.text for chunk in chunks) == document.text
        assert all(chunk.tokens <= 256 for chunk in chunks)
    # The embedder is shared with other tests, so only the catalog is closed.
    retriever.catalog.close()


def test_passages_cite_exact_characters(open_retriever: OpenRetriever) -> None:
    text = "Über 漢字 👨‍👩‍👧. Second sentence here!\r\n\r\nE\u0301 third 🇩🇪 part. And the fox last."
    retriever = open_retriever(max_tokens=6)
    retriever.ingest([Document("a", text)])
    passages = retriever.search("fox", 100)
    assert "fox" in passages[0].chunk.text
    assert len(passages) > 3
    for passage in passages:
        chunk = passage.chunk
        assert chunk.text == text[chunk.char_start : chunk.char_end]


def test_best_comes_first_and_scores_are_cosines(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest(ANIMALS)
    passages = retriever.search("Fox\nThe red fox hunts at night.", 99)
    assert [passage.chunk.doc_id for passage in passages] == ["fox", "owl", "whale"]
    assert passages[0].score == pytest.approx(1.0)
    assert all(-1.0 <= passage.score <= 1.0 for passage in passages)


def test_ties_come_by_chunk_id(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest(Document(name, "the same text") for name in "dbacfe")
    for top_k in (2, 4, 9):
        found = [passage.chunk.chunk_id for passage in retriever.search("same", top_k)]
        assert found == sorted(found) and len(found) == min(top_k, 6)


def test_filter_by_metadata_and_document(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest(ANIMALS)

    def found(doc_filter: DocFilter) -> list[str]:
        return [hit.chunk.doc_id for hit in retriever.search("red fox", 9, doc_filter)]

    assert found(DocFilter(where=parse_filter({"legs": 2}))) == ["owl"]
    assert set(found(DocFilter(doc_ids=("whale", "owl")))) == {"whale", "owl"}
    assert found(DocFilter(where=parse_filter({"legs": 9}))) == []


@pytest.mark.parametrize(("query", "top_k"), [("", 5), (" \n", 5), ("fox", 0), ("fox", -1)])
def test_unusable_queries_are_refused(
    open_retriever: OpenRetriever, query: str, top_k: int
) -> None:
    assert open_retriever().search("fox", 5) == [], "of an empty corpus"
    with pytest.raises(InvalidQuery):
        open_retriever().search(query, top_k)


def test_delete_removes_vectors_and_passages(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    results = retriever.ingest(ANIMALS)
    removed = retriever.delete(["fox", "unknown"])
    assert removed == [chunk.chunk_id for chunk in results[0].chunks]
    assert ids_in_index(retriever) == ids_in_catalog(retriever)
    assert not ids_in_index(retriever) & set(removed)
    assert "fox" not in [hit.chunk.doc_id for hit in retriever.search("red fox", 9)]
    assert retriever.delete(["fox"]) == []


def test_updates_swap_atomically_under_searches(open_retriever: OpenRetriever) -> None:
    """A search sees all chunks of the old revision or all of the new one."""
    retriever = open_retriever(max_tokens=8)
    revisions = [" ".join(["red"] * 40), " ".join(["red blue"] * 30)]
    whole = {len(revision) for revision in revisions}
    retriever.ingest([Document("a", revisions[0])])
    stop = threading.Event()
    torn: list[int] = []
    searches = 0

    def search() -> None:
        nonlocal searches
        while not stop.is_set():
            hits = retriever.search("red", 1000)
            searches += 1
            if sum(len(hit.chunk.text) for hit in hits) not in whole or (
                len({hit.chunk.revision for hit in hits}) != 1
            ):
                torn.append(len(hits))

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(40):
        retriever.ingest([Document("a", revisions[(turn + 1) % 2])])
    stop.set()
    for thread in threads:
        thread.join()
    assert torn == [] and searches > 3
    assert ids_in_index(retriever) == ids_in_catalog(retriever)


def test_many_threads_ingest_and_delete(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()

    def work(thread: int) -> None:
        for number in range(8):
            retriever.ingest([Document(f"{thread}-{number}", f"text {thread} {number}")])
            retriever.ingest([Document("shared", f"text of {thread} {number}")])
            if number % 2:
                retriever.delete([f"{thread}-{number}"])

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for running in threads:
        running.start()
    for running in threads:
        running.join()
    assert retriever.catalog.counts().documents == 4 * 4 + 1
    assert ids_in_index(retriever) == ids_in_catalog(retriever)


def test_use_before_start(tmp_path: Path, counters: dict[str, TokenCounter]) -> None:
    settings = ChunkSettings(counters["words"])
    retriever = Retriever.in_folder(tmp_path, HashingEmbedder(), settings)
    with pytest.raises(NotOpen):
        retriever.search("fox", 1)
    assert [result.status for result in retriever.ingest(ANIMALS[:1])] == ["failed"]


def test_another_embedder_is_refused(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest(ANIMALS)
    retriever.save()
    retriever.close()
    with pytest.raises(EmbedderMismatch, match="hashing"):
        open_retriever(HashingEmbedder(64))
    assert len(open_retriever().search("fox", 9)) == 3
