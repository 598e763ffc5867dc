"""Pages and headings: kept with a document, found for a chunk."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from kvstitch.records.documents import DocumentMark
from kvstitch.retriever import ChunkSettings, Document, Retriever, Scope
from kvstitch.retriever.errors import InvalidDocument
from tests.fakes.models import HashingEmbedder, WordCounter

INTRO, ONE, TWO = "before all\n\n", "the red fox hunts\n\n", "an owl sleeps\n\n"
MARKS = (
    DocumentMark(start=12, kind="page", label="1"),
    DocumentMark(start=12, kind="heading", label="Fox"),
    DocumentMark(start=31, kind="page", label="2"),
    DocumentMark(start=36, kind="heading", label="Sleep"),
)
DOCUMENT = Document("d", INTRO + ONE + TWO, "T", {}, MARKS)


def opened(folder: Path) -> Retriever:
    retriever = Retriever.in_folder(folder, HashingEmbedder(), ChunkSettings(WordCounter(), 4))
    retriever.start()
    return retriever


def test_chunks_know_their_page_and_heading(tmp_path: Path) -> None:
    retriever = opened(tmp_path)
    scope = Scope("tenant", "manuals")
    retriever.ingest([DOCUMENT], scope=scope)
    retriever.ingest([replace(DOCUMENT, marks=())], scope=Scope())
    stored = retriever.catalog.get("d", scope=scope)
    assert stored is not None and (stored.text, stored.title) == (DOCUMENT.text, "T")
    assert stored.marks == list(MARKS)
    chunks = retriever.catalog.chunks_of("d", scope=scope)
    assert [(c.text.strip(), c.page, c.heading) for c in chunks] == [
        ("before all", None, None),
        ("the red fox hunts", "1", "Fox"),
        ("an owl sleeps", "2", "Fox"),
    ]
    (hit,) = retriever.search("owl", 1, scope=scope, mode="sparse")
    assert (hit.chunk.page, hit.chunk.heading) == ("2", "Fox")
    assert retriever.catalog.chunks([hit.chunk.chunk_id]) == [hit.chunk]
    retriever.delete(["d"], scope=scope)
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        assert connection.execute("SELECT count(*) FROM marks").fetchone() == (0,)
    retriever.close()


def test_other_marks_are_another_revision(tmp_path: Path) -> None:
    retriever = opened(tmp_path)
    statuses = [
        retriever.ingest([replace(DOCUMENT, marks=marks)])[0].status
        for marks in ((), MARKS, MARKS, MARKS[:1])
    ]
    assert statuses == ["created", "updated", "unchanged", "updated"]
    retriever.close()


@pytest.mark.parametrize(
    "marks", [MARKS[::-1], (replace(MARKS[0], start=-1),), (replace(MARKS[0], start=99),)]
)
def test_marks_out_of_order_or_of_the_text(tmp_path: Path, marks: tuple[DocumentMark, ...]) -> None:
    retriever = opened(tmp_path)
    (result,) = retriever.ingest([replace(DOCUMENT, marks=marks)])
    assert isinstance(result.error, InvalidDocument) and "marks" in str(result.error)
    retriever.close()
