"""Through Retriever.ingest: what becomes of good, bad, repeated and failing documents."""

from __future__ import annotations

from collections.abc import Sequence

from kvstitch.retriever import Document
from kvstitch.retriever.embedders import CountedVectors
from kvstitch.retriever.errors import EmbedderError, InvalidDocument
from kvstitch.retriever.ingest import EmbeddedDocument
from tests.fakes.models import HashingEmbedder
from tests.retriever.conftest import OpenRetriever


class CountingEmbedder(HashingEmbedder):
    """Counts texts and calls, and fails on one particular text."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[str]] = []

    def embed(self, texts: Sequence[str]) -> CountedVectors:
        self.calls.append(list(texts))
        if any("poison" in text for text in texts):
            raise RuntimeError("out of luck")
        return super().embed(texts)


def test_results_come_in_the_order_of_the_documents(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest([Document("b", "same")])
    results = retriever.ingest(
        [Document("a", "new"), Document("", "bad"), Document("b", "same"), Document("c", "")]
    )
    assert [(result.doc_id, result.status) for result in results] == [
        ("a", "created"),
        ("", "failed"),
        ("b", "unchanged"),
        ("c", "created"),
    ]
    assert isinstance(results[1].error, InvalidDocument)
    assert [len(result.chunks) for result in results] == [1, 0, 1, 0]
    assert [result.error for result in results if result.status != "failed"] == [None] * 3


def test_unchanged_document_is_not_embedded_again(open_retriever: OpenRetriever) -> None:
    embedder = CountingEmbedder()
    retriever = open_retriever(embedder)
    first = retriever.ingest([Document("a", "text")])
    embedder.calls.clear()
    again = retriever.ingest([Document("a", "text")])
    assert embedder.calls == []
    assert again[0].chunks == first[0].chunks


def test_other_chunk_size_is_another_revision(open_retriever: OpenRetriever) -> None:
    document = Document("a", "one two three four. five six seven eight.")
    retriever = open_retriever(max_tokens=32)
    first = retriever.ingest([document])[0]
    retriever.close()
    second = open_retriever(max_tokens=5).ingest([document])[0]
    assert second.status == "updated"
    assert second.removed_chunk_ids == [first.chunks[0].chunk_id]
    assert len(second.chunks) == 2


def test_documents_share_batches(open_retriever: OpenRetriever) -> None:
    embedder = CountingEmbedder()
    open_retriever(embedder).ingest(Document(f"d{n}", f"text {n}") for n in range(300))
    assert [len(texts) for texts in embedder.calls] == [256, 44]


def test_title_is_embedded_with_every_chunk(open_retriever: OpenRetriever) -> None:
    embedder = CountingEmbedder()
    retriever = open_retriever(embedder, max_tokens=4)
    chunks = retriever.ingest([Document("a", "one two three. four five six.", "Name")])[0].chunks
    assert embedder.calls == [["Name\none two three. ", "Name\nfour five six."]]
    assert [chunk.text for chunk in chunks] == ["one two three. ", "four five six."]


def test_document_that_cannot_be_embedded_fails_alone(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever(CountingEmbedder())
    results = retriever.ingest(
        [Document("a", "good"), Document("b", "poison"), Document("c", "fine")]
    )
    assert [result.status for result in results] == ["created", "failed", "created"]
    assert isinstance(results[1].error, EmbedderError)
    assert retriever.catalog.get("b") is None
    assert retriever.catalog.counts().documents == 2


def test_failed_update_leaves_the_old_revision(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever(CountingEmbedder())
    retriever.ingest([Document("a", "good text")])
    retriever.ingest([Document("a", "poison")])
    assert retriever.search("good text", 1)[0].chunk.text == "good text"


def test_last_of_several_revisions_in_one_call_wins(open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.ingest([Document("a", "first")])
    results = retriever.ingest(
        [Document("a", "second"), Document("a", "first"), Document("a", "first")]
    )
    assert [result.status for result in results] == ["updated", "updated", "unchanged"]
    assert [passage.chunk.text for passage in retriever.search("first", 5)] == ["first"]


def test_what_was_embedded_is_stored_whatever_happened_in_between(
    open_retriever: OpenRetriever,
) -> None:
    """Embedding looks up which documents are stored; they may change before the storing."""
    retriever = open_retriever()
    retriever.ingest([Document("same", "text"), Document("other", "text")])
    documents = [Document("same", "text"), Document("other", "new"), Document("", "bad")]
    items = [EmbeddedDocument(**vars(document)) for document in documents]
    embedded = list(retriever.embedding.embed(items))
    assert [result.doc_id for result in retriever.catalog.page().documents] == ["other", "same"]
    retriever.delete(["same", "other"])
    results = [retriever.store(item) for item in embedded]
    assert [result.status for result in results] == ["created", "created", "failed"]
    assert len(retriever.search("text", 5)) == 2
    again = [retriever.store(item).status for item in embedded]
    assert again == ["unchanged"] * 2 + ["failed"]
