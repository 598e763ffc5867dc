"""Copies a catalog from its SQLite file to PostgreSQL: `kvstitch migrate`."""

from __future__ import annotations

import sqlite3
from itertools import islice
from pathlib import Path
from typing import Any

from retriever.catalog.sqlite_database import SqliteDatabase
from retriever.errors import CatalogError
from retriever.index import postings
from retriever.sql.copying import copy_table, go_on_after, last_given_out
from retriever.sql.postgresql import PostgresqlConnection

_DOCUMENTS = ("document", "scope_id", "doc_id", "revision", "space_id", "created", "updated",
              "num_chars", "pinned", "title", "metadata", "text")  # fmt: skip
_TABLES = (
    ("chunks", ("chunk_id", "document", "ordinal", "char_start", "char_end", "tokens", "text")),
    ("vectors", ("chunk_id", "space_id", "vector")),
    ("accompanied", ("chunk_id", "kind", "exact")),
    ("companions", ("chunk_id", "position", "companion_id")),
    ("primers", ("scope_id", "number", "position", "chunk_id")),
    ("marks", ("document", "is_heading", "start", "kind", "label")),
)
_WORDS_AT_A_TIME = 500


def copy_catalog(file: Path, target: PostgresqlConnection) -> dict[str, int]:
    """Copy everything, with ids and generation, so that a saved index stays right.

    Args:
        file: the catalog; it is brought up to date first.
        target: a transaction in empty tables of the catalog.

    Returns:
        How many documents and chunks were copied.

    Raises:
        CatalogError: the file cannot be used, or holds what PostgreSQL cannot store.
    """
    SqliteDatabase(file).start()  # an older release may have written it
    source = sqlite3.connect(file)
    try:
        _refuse_nul(source)
        copy_table(source, target, "spaces", ("space_id", "name", "revision", "dim"))
        copy_table(source, target, "scopes", ("scope_id", "tenant", "collection"))

        def folded(row: list[Any]) -> list[Any]:
            return [*row, str(row[2]).casefold(), str(row[9]).casefold()]

        documents = copy_table(
            source, target, "documents", _DOCUMENTS,
            change=folded, further=("folded_id", "folded_title"),
        )  # fmt: skip
        counts = {table: copy_table(source, target, table, names) for table, names in _TABLES}
        _index_words(source, target)
        generation, token = source.execute("SELECT generation, token FROM state").fetchone()
        target.execute("UPDATE state SET generation = ?, token = ?", (generation, token))
        target.execute("DELETE FROM changes")
        target.execute("INSERT INTO changes VALUES (?, ?, '', '', '{}', '{}')", (generation, token))
        go_on_after(target, "spaces", "space_id", 0)
        go_on_after(target, "scopes", "scope_id", last_given_out(source, "scopes"))
        go_on_after(target, "documents", "document", 0)
        go_on_after(target, "chunks", "chunk_id", last_given_out(source, "chunks"))
        return {"documents": documents, "chunks": counts["chunks"]}
    finally:
        source.close()


def _refuse_nul(source: sqlite3.Connection) -> None:
    found = source.execute(
        "SELECT doc_id FROM documents WHERE instr(text, char(0)) OR instr(title, char(0)) "
        "OR instr(doc_id, char(0)) LIMIT 3"
    ).fetchall()
    if found:
        raise CatalogError(
            f"PostgreSQL stores no NUL characters, and these documents hold some: "
            f"{', '.join(repr(doc_id) for (doc_id,) in found)}; ingest them without, or delete them"
        )


def _index_words(source: sqlite3.Connection, target: PostgresqlConnection) -> None:
    for (scope_id,) in source.execute("SELECT scope_id FROM scopes").fetchall():
        rows = source.execute(
            "SELECT chunk_id, title, chunks.text FROM chunks JOIN documents USING (document) "
            "WHERE scope_id = ?",
            (scope_id,),
        )
        while batch := list(islice(rows, _WORDS_AT_A_TIME)):
            postings.add(target, scope_id, batch)
