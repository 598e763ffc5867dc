"""Another embedder than that of what is stored: the old one answers until there are its vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kvstitch.records.documents import DocumentMark
from kvstitch.retriever import ChunkSettings, Document, Embedder, Retriever
from kvstitch.retriever.embedders import CountedVectors, EmbeddingSpace, Prompts, space_of
from kvstitch.retriever.errors import EmbedderError
from kvstitch.retriever.ingest import EmbeddedDocument
from kvstitch.retriever.vector_renewal import CHUNKS_RENEWED
from tests.fakes.models import HashingEmbedder, WordCounter

MARK = DocumentMark(start=0, kind="heading", label="Screws")
DOCUMENTS = [
    Document(
        f"d{n}",
        f"Screws\nscrew{n} is made of steel, as long as it is said to be\n\nNuts\nnut{n} fits",
        title=f"part {n}",
        marks=(MARK, replace(MARK, start=len("Screws\n"), kind="page", label="1")),
    )
    for n in range(CHUNKS_RENEWED)
]
OLD, NEW = HashingEmbedder(64), HashingEmbedder(64)  # as large, so nothing else tells them apart
NEW.name, NEW.prompts = "better", Prompts("query: ", "passage: ")


def old(space: EmbeddingSpace) -> Embedder | None:
    return OLD if space == space_of(OLD) else None


def opened(folder: Path, embedder: Embedder) -> Retriever:
    chunking = ChunkSettings(WordCounter(), 16)
    retriever = Retriever.in_folder(folder, embedder, chunking)
    retriever.former = old
    retriever.start()
    return retriever


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    retriever = opened(tmp_path, OLD)
    retriever.ingest(DOCUMENTS)
    retriever.save()
    retriever.close()
    return tmp_path


def vectors(retriever: Retriever, space: EmbeddingSpace) -> dict[tuple[str, int], bytes]:
    found: dict[tuple[str, int], bytes] = {}
    for _, ids, rows in retriever.catalog.vectors(space):
        for chunk, row in zip(retriever.catalog.chunks(ids.tolist()), rows, strict=True):
            found[chunk.doc_id, chunk.ordinal] = row.tobytes()
    return found


def after(steps: int) -> Callable[[], bool]:
    """Returns a `stopped` that says so after so many steps."""
    left = iter([False] * steps)
    return lambda: next(left, True)


def test_the_old_one_answers_until_all_is_embedded(folder: Path, tmp_path: Path) -> None:
    retriever = opened(folder, NEW)
    assert retriever.embedder is OLD and retriever.indexes_overdue()
    renewal = retriever.renewal
    assert renewal is not None and renewal.progress()[0] == 0
    asked = retriever.embed_query("screw7 steel")
    before = retriever.search("screw7 steel", 3)
    assert not retriever.rebuild_indexes(after(1))
    assert renewal.progress()[0] == CHUNKS_RENEWED < renewal.progress()[1]
    assert retriever.search("screw7 steel", 3) == before
    retriever.ingest([Document("late", "a washer came late")])
    retriever.delete(["d1", f"d{CHUNKS_RENEWED - 1}"])
    waits = EmbeddedDocument("waits", "a bolt that waits to be stored")
    parts = EmbeddedDocument("parts", "a rivet whose parts are embedded one by one")
    list(retriever.embedding.embed([waits]))
    retriever.embedding.split(parts)
    assert retriever.rebuild_indexes()
    assert retriever.embedder is NEW and retriever.renewal is None
    retriever.embedding.embed_part(parts, 0, len(parts.spans))
    assert [retriever.store(item).status for item in (waits, parts)] == ["created", "created"]
    assert retriever.search("screw7 steel", 1)[0].chunk.doc_id == "d7"
    again = retriever.search("screw7 steel", 1, vector=asked)  # embedded before the change
    assert again == retriever.search("screw7 steel", 1)
    retriever.save()

    fresh = opened(tmp_path / "fresh", NEW)
    kept = [d for d in DOCUMENTS if d.doc_id not in ("d1", f"d{CHUNKS_RENEWED - 1}")]
    late = [Document(d.doc_id, d.text) for d in (waits, parts)]
    fresh.ingest([*kept, Document("late", "a washer came late"), *late])
    assert vectors(retriever, space_of(NEW)) == vectors(fresh, space_of(NEW))
    assert vectors(retriever, space_of(OLD)) == {}
    retriever.close()
    assert opened(folder, NEW).renewal is None


def test_a_restart_goes_on_and_a_return_forgets(folder: Path) -> None:
    retriever = opened(folder, NEW)
    retriever.rebuild_indexes(after(1))
    retriever.close()
    again = opened(folder, NEW)
    assert again.renewal is not None and again.renewal.progress()[0] == CHUNKS_RENEWED
    again.close()
    returned = opened(folder, OLD)
    assert returned.renewal is None and returned.search("screw7 steel", 1)[0].chunk.doc_id == "d7"
    returned.close()
    assert (renewal := opened(folder, NEW).renewal) is not None and renewal.progress()[0] == 0


class Failing(HashingEmbedder):
    name = "failing"

    def embed(self, texts: Sequence[str]) -> CountedVectors:
        raise EmbedderError("out of luck")


def test_one_that_fails_leaves_the_old_one_answering(folder: Path) -> None:
    retriever = opened(folder, Failing())
    with pytest.raises(EmbedderError):
        retriever.rebuild_indexes()
    assert retriever.renewal is not None and retriever.renewal.failure == "out of luck"
    assert retriever.search("screw7 steel", 1)[0].chunk.doc_id == "d7"
