"""What holds for the catalog in an SQLite file alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstitch.retriever.catalog.catalog import Catalog
from kvstitch.retriever.documents import Document
from kvstitch.retriever.errors import DatabaseError, NotOpen, WrongSchema
from tests.retriever.catalog.test_catalog import put, stored_vectors


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = Catalog(tmp_path / "catalog.db")
    catalog.start()
    yield catalog
    catalog.close()


def test_a_text_with_nul_comes_back_as_it_went_in(catalog: Catalog) -> None:
    document = Document("d/1", "zero\x00byte and more words")
    put(catalog, document)
    stored = catalog.get("d/1")
    assert stored is not None and stored.text == document.text


def test_reads_go_on_while_a_write_is_open(catalog: Catalog, tmp_path: Path) -> None:
    put(catalog, Document("a", "one"))
    other = sqlite3.connect(tmp_path / "catalog.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("DELETE FROM documents")
    assert catalog.get("a") is not None
    assert len(stored_vectors(catalog)) == 1
    other.rollback()
    other.close()


def test_use_before_start_and_after_close(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(NotOpen):
        Catalog(tmp_path / "new.db").counts()
    catalog.close()
    with pytest.raises(NotOpen):
        put(catalog, Document("a", "one"))


@pytest.mark.parametrize("revision", ["catalog_3", "catalog_99"])
def test_revisions_of_no_release_and_later_ones_are_refused(
    catalog: Catalog, tmp_path: Path, revision: str
) -> None:
    catalog.close()
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    connection.close()
    with pytest.raises(WrongSchema, match=f"{revision}.*ingest the documents again"):
        catalog.start()


def test_tables_of_no_release_are_refused_and_left_as_they_are(
    catalog: Catalog, tmp_path: Path
) -> None:
    catalog.close()
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        connection.execute("DROP TABLE alembic_version")
        before = list(connection.iterdump())
    with pytest.raises(WrongSchema, match="start with a new data folder"):
        catalog.start()
    assert list(connection.iterdump()) == before
    connection.close()


def test_new_tables_hold_together(catalog: Catalog, tmp_path: Path) -> None:
    put(catalog, Document("fox", "the red fox hunts"))
    put(catalog, Document("owl", "an owl"))
    catalog.delete(["fox"])
    catalog.close()
    connection = sqlite3.connect(tmp_path / "catalog.db")
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    [(text,)] = connection.execute("SELECT text FROM chunks JOIN vectors USING (chunk_id)")
    assert text == "an owl"
    connection.close()


def test_file_that_is_no_database_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(DatabaseError):
        Catalog(tmp_path / "catalog.db").start()
