from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kvstitch.retriever.analysis.analyser import analyse_query
from kvstitch.retriever.catalog.catalog import Catalog
from kvstitch.retriever.chunking import ChunkSettings, ChunkSpan
from kvstitch.retriever.documents import DocFilter, Document, IngestResult, document_revision
from kvstitch.retriever.embedders import space_of
from kvstitch.retriever.errors import InvalidQuery
from kvstitch.retriever.filters import parse_filter
from kvstitch.retriever.scope import Scope
from kvstitch.retriever.sql.database import Database
from tests.fakes.models import HashingEmbedder, WordCounter

FOX = analyse_query("fox")
EMBEDDER = HashingEmbedder(8)
SPACE = space_of(EMBEDDER)
BOTH_DATABASES = True  # every test here holds for each (see conftest.py)


@pytest.fixture
def catalog(open_database: Callable[[], Database]) -> Iterator[Catalog]:
    catalog = Catalog(open_database())
    catalog.start()
    yield catalog
    catalog.close()


def put(catalog: Catalog, document: Document, max_tokens: int = 4) -> IngestResult:
    spans = ChunkSettings(WordCounter(), max_tokens).split(document.text)
    vectors = EMBEDDER.embed([document.text[span.start : span.end] for span in spans])[0]
    return catalog.upsert(document, document_revision(document, "chunking"), spans, vectors, SPACE)


def stored_vectors(catalog: Catalog) -> dict[int, list[float]]:
    return {
        int(i): vector.tolist()
        for _, ids, vectors in catalog.vectors(SPACE, batch=3)
        for i, vector in zip(ids, vectors, strict=True)
    }


def test_document_comes_back_as_it_went_in(catalog: Catalog) -> None:
    text = "Ünï\r\ncode 漢字。👨‍👩‍👧 and more words\n" * 3
    document = Document("d/1", text, "Tïtle", {"a": [1, None, {"b": "é"}], "c": 1.5})
    done = put(catalog, document)
    assert done.status == "created" and done.removed_chunk_ids == []
    stored = catalog.get("d/1")
    assert stored is not None
    assert (stored.text, stored.title) == (text, "Tïtle")
    assert stored.metadata == document.metadata
    assert stored.num_chars == len(text)
    assert stored.num_chunks == len(done.chunks) > 5
    assert stored.num_tokens == sum(chunk.tokens for chunk in done.chunks)
    assert "".join(chunk.text for chunk in catalog.chunks_of("d/1")) == text
    for chunk in catalog.chunks_of("d/1"):
        assert chunk.text == text[chunk.char_start : chunk.char_end]
        assert (chunk.title, chunk.revision) == ("Tïtle", stored.revision)


def test_same_revision_changes_nothing(catalog: Catalog) -> None:
    first = put(catalog, Document("a", "one two three four five"))
    again = put(catalog, Document("a", "one two three four five"))
    assert again == IngestResult("a", "unchanged", first.chunks, state=first.state)


def test_other_revision_takes_the_place_of_the_old(catalog: Catalog) -> None:
    first = put(catalog, Document("a", "one two three four five"))
    created = catalog.get("a")
    second = put(catalog, Document("a", "one two three four six"))
    updated = catalog.get("a")
    assert second.status == "updated" and created is not None and updated is not None
    assert updated.created == created.created <= updated.updated
    assert second.removed_chunk_ids == [chunk.chunk_id for chunk in first.chunks]
    assert catalog.chunks_of("a") == second.chunks
    assert set(stored_vectors(catalog)) == {chunk.chunk_id for chunk in second.chunks}
    assert first.state is not None and second.state is not None
    assert second.state.generation == first.state.generation + 1
    assert catalog.counts().documents == 1


def test_chunk_ids_are_never_used_again(catalog: Catalog) -> None:
    first = put(catalog, Document("a", "one"))
    catalog.delete(["a"])
    second = put(catalog, Document("a", "one"))
    assert second.chunks[0].chunk_id > first.chunks[0].chunk_id


def test_delete_takes_everything(catalog: Catalog) -> None:
    first = put(catalog, Document("a", "one two three four five"))
    put(catalog, Document("b", "other"))
    removed, state = catalog.delete(["a", "unknown", "a"])
    assert removed == [chunk.chunk_id for chunk in first.chunks]
    assert catalog.state() == state
    assert catalog.get("a") is None and catalog.chunks_of("a") == []
    assert catalog.chunks(removed) == []
    assert len(stored_vectors(catalog)) == 1
    assert catalog.delete(["a"]) == ([], state)


def test_a_scope_whose_only_document_has_no_chunks_can_be_searched(catalog: Catalog) -> None:
    assert put(catalog, Document("blank", "")).chunks == []
    assert catalog.search(FOX, 5).ranked == []
    catalog.purge()
    put(catalog, Document("fox", "the red fox"))
    assert len(catalog.search(FOX, 5).ranked) == 1
    catalog.delete(["fox"])
    assert catalog.search(FOX, 5).ranked == []
    catalog.delete(["blank"])
    assert catalog.search(FOX, 5).ranked == []


def test_failed_upsert_leaves_the_old_revision(catalog: Catalog) -> None:
    first = put(catalog, Document("a", "one two three"))
    broken = [ChunkSpan(0, 3, 1), ChunkSpan(3, "x", 1)]  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        catalog.upsert(Document("a", "new"), "r", broken, np.zeros((2, 8), np.float32), SPACE)
    assert catalog.chunks_of("a") == first.chunks
    assert catalog.state() == first.state
    assert put(catalog, Document("b", "still writable")).status == "created"


def test_vectors_come_back_exactly(catalog: Catalog) -> None:
    chunks = [
        chunk
        for number in range(7)
        for chunk in put(catalog, Document(f"d{number}", f"text number {number}")).chunks
    ]
    expected = EMBEDDER.embed([chunk.text for chunk in chunks])[0].tolist()
    ids = [chunk.chunk_id for chunk in chunks]
    assert stored_vectors(catalog) == dict(zip(ids, expected, strict=True))
    assert catalog.chunks([ids[2], 999, ids[0]]) == [chunks[2], chunks[0]]
    named = DocFilter(doc_ids=("d3", "d0", "x"))
    assert catalog.chunk_ids(named) == [ids[0], ids[3]]
    assert catalog.chunk_ids(DocFilter(doc_ids=())) == []
    assert catalog.spaces() == [SPACE]
    assert list(catalog.vectors(space_of(HashingEmbedder(9)))) == []


def test_metadata_of_documents_of_one_scope_alone(catalog: Catalog) -> None:
    put(catalog, Document("a", "One.", metadata={"url": "https://a", "pages": [1, 2]}))
    put(catalog, Document("b", "Two."))
    found = catalog.metadata_of({"a", "b", "c"})
    assert found == {"a": {"url": "https://a", "pages": [1, 2]}, "b": {}}
    assert catalog.metadata_of({"a"}, scope=Scope("other", "default")) == {}
    assert catalog.metadata_of([]) == {}


def test_pages_go_over_all_documents_once(catalog: Catalog) -> None:
    names = sorted(f"doc-{number}-ü" for number in range(23))
    for name in reversed(names):
        put(catalog, Document(name, "text"))
    seen: list[str] = []
    cursor = None
    while True:
        page = catalog.page(limit=5, cursor=cursor)
        seen += [info.doc_id for info in page.documents]
        # Deleting listed documents does not shift the following pages.
        catalog.delete([page.documents[0].doc_id])
        if (cursor := page.next_cursor) is None:
            break
    assert seen == names
    with pytest.raises(InvalidQuery):
        catalog.page(limit=0)


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ({}, "abcd"),
        ({"lang": "en"}, "ab"),
        ({"lang": "en", "year": 1}, "a"),
        ({"year": 1.0}, "a"),
        ({"year": True}, "c"),
        ({"year": None}, "d"),
        ({"year": "1"}, "b"),
        ({"lang": "' OR 1=1 --"}, ""),
        ({'a\\."b"[0] $': "odd"}, "d"),
        ({"missing": None}, ""),
    ],
)
def test_metadata_filter_matches_type_and_value(
    catalog: Catalog, metadata: dict[str, Any], found: str
) -> None:
    put(catalog, Document("a", "one", metadata={"lang": "en", "year": 1}))
    put(catalog, Document("b", "two", metadata={"lang": "en", "year": "1"}))
    put(catalog, Document("c", "three", metadata={"lang": "de", "year": True}))
    put(catalog, Document("d", "four", metadata={"year": None, 'a."b"[0] $': "odd"}))
    doc_filter = DocFilter(where=parse_filter(metadata))
    page = catalog.page(doc_filter=doc_filter)
    assert "".join(info.doc_id for info in page.documents) == found
    ids = [chunk.chunk_id for doc_id in found for chunk in catalog.chunks_of(doc_id)]
    assert sorted(catalog.chunk_ids(doc_filter)) == sorted(ids)


def test_readers_see_whole_documents_while_others_write(catalog: Catalog) -> None:
    texts = {"x" + " x" * 10, "y" + " y" * 20}
    stop = threading.Event()
    broken: list[str] = []
    put(catalog, Document("a", min(texts)))

    def read() -> None:
        while not stop.is_set():
            text = "".join(chunk.text for chunk in catalog.chunks_of("a"))
            if text not in texts:
                broken.append(text)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        for text in sorted(texts):
            put(catalog, Document("a", text))
    stop.set()
    for thread in threads:
        thread.join()
    assert broken == []


def test_many_threads_write(catalog: Catalog) -> None:
    def write(thread: int) -> None:
        for number in range(10):
            put(catalog, Document(f"{thread}-{number}", "some text here"))

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for running in threads:
        running.start()
    for running in threads:
        running.join()
    assert catalog.counts().documents == 40
    assert catalog.state().generation == 40
