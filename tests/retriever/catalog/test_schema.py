"""Catalogs of older releases are upgraded completely, or left unchanged."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from retriever import Document, Scope
from retriever.errors import CatalogError
from tests.fakes.models import HashingEmbedder
from tests.retriever.conftest import OpenRetriever

# The schema of the first release.
VERSION_1 = """
CREATE TABLE state (generation INTEGER NOT NULL, token TEXT NOT NULL);
CREATE TABLE spaces (
    space_id INTEGER PRIMARY KEY, name TEXT NOT NULL, revision TEXT NOT NULL,
    dim INTEGER NOT NULL, UNIQUE (name, revision, dim)
);
CREATE TABLE documents (
    doc_id TEXT PRIMARY KEY, revision TEXT NOT NULL,
    space_id INTEGER NOT NULL REFERENCES spaces, created REAL NOT NULL, updated REAL NOT NULL,
    num_chars INTEGER NOT NULL, title TEXT NOT NULL, metadata TEXT NOT NULL, text TEXT NOT NULL
);
CREATE INDEX documents_by_space ON documents (space_id);
CREATE TABLE chunks (
    chunk_id INTEGER PRIMARY KEY AUTOINCREMENT,
    doc_id TEXT NOT NULL REFERENCES documents ON DELETE CASCADE,
    ordinal INTEGER NOT NULL, char_start INTEGER NOT NULL, char_end INTEGER NOT NULL,
    tokens INTEGER NOT NULL, text TEXT NOT NULL, UNIQUE (doc_id, ordinal)
);
CREATE TABLE vectors (
    chunk_id INTEGER PRIMARY KEY REFERENCES chunks ON DELETE CASCADE,
    space_id INTEGER NOT NULL REFERENCES spaces, vector BLOB NOT NULL
);
PRAGMA user_version = 1;
"""


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    """Two documents, one of them with two chunks; chunk 9 was the last one deleted."""
    path = tmp_path / "catalog.db"
    connection = sqlite3.connect(path)
    connection.executescript(VERSION_1)
    connection.execute("INSERT INTO state VALUES (7, 'seven')")
    embedder = HashingEmbedder()
    space = (1, embedder.name, embedder.revision, embedder.dim)
    connection.execute("INSERT INTO spaces VALUES (?, ?, ?, ?)", space)
    numbers = iter((1, 2, 5, 9))
    for doc_id, texts in [("fox", ["the red fox ", "hunts"]), ("owl", ["an owl"]), ("x", ["x"])]:
        row = (doc_id, "r", 1, 10.0, 20.0, len("".join(texts)), "T", '{"a": 1}', "".join(texts))
        connection.execute("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        for ordinal, text in enumerate(texts):
            number = next(numbers)
            chunk = (number, doc_id, ordinal, 0, len(text), 2, text)
            connection.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?)", chunk)
            blob = embedder.embed([text])[0].tobytes()
            connection.execute("INSERT INTO vectors VALUES (?, 1, ?)", (number, blob))
    connection.commit()
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("DELETE FROM documents WHERE doc_id = 'x'")
    connection.commit()
    connection.close()
    return path


def test_documents_of_the_first_release_are_of_the_default_scope(
    old_file: Path, open_retriever: OpenRetriever
) -> None:
    for _ in range(2):  # the second time it is a file of this release
        retriever = open_retriever()
        assert [chunk.chunk_id for chunk in retriever.catalog.chunks_of("fox")] == [1, 2]
        stored = retriever.catalog.get("fox", scope=Scope())
        assert stored is not None
        assert stored.document == Document("fox", "the red fox hunts", "T", {"a": 1})
        assert (stored.info.created, stored.info.updated, stored.info.pinned) == (10.0, 20.0, False)
        hits = retriever.search("red fox", 9)
        assert hits[0].chunk.chunk_id == 1 and len(hits) == 3
        assert [hit.chunk.chunk_id for hit in retriever.search("hunt", 9, mode="sparse")] == [2]
        retriever.close()


def test_chunk_ids_of_the_first_release_are_not_used_again(
    old_file: Path, open_retriever: OpenRetriever
) -> None:
    [result] = open_retriever().ingest([Document("new", "new")])
    assert [chunk.chunk_id for chunk in result.chunks] == [10]


def test_new_tables_hold_together(old_file: Path, open_retriever: OpenRetriever) -> None:
    retriever = open_retriever()
    retriever.delete(["fox"])
    retriever.close()
    connection = sqlite3.connect(old_file)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("SELECT chunk_id FROM vectors").fetchall() == [(5,)]
    connection.close()


def test_migration_that_fails_changes_nothing(
    old_file: Path, open_retriever: OpenRetriever
) -> None:
    connection = sqlite3.connect(old_file)
    connection.execute("CREATE TABLE scopes (in_the_way)")
    before = list(connection.iterdump())
    with pytest.raises(CatalogError, match="scopes"):
        open_retriever()
    assert list(connection.iterdump()) == before
    connection.close()
