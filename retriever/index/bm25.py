"""Keyword search: BM25 by SQLite's FTS5, in tables of the catalog. Callers hold a transaction.

A chunk's words are committed with the chunk, so this index is never behind, needs no saving and no
rebuild. Every scope has its own table. In a common table, the score of a word would depend on other
tenants' documents and tell about them.

The tables hold no text (content=''). FTS5 keeps removed words in its older segments until they are
merged, so a scope from which something was removed is marked `stale` until `purge`.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import Connection

from retriever.errors import CatalogUnsupported
from retriever.index.full_text import TOKENIZER, ChunkWords, indexed_text, match_expression


def require() -> None:
    """Check that this Python's SQLite has FTS5.

    Raises:
        CatalogUnsupported: It has not.
    """
    with contextlib.closing(sqlite3.connect(":memory:")) as memory:
        try:
            memory.execute("CREATE VIRTUAL TABLE probe USING fts5(body)")
        except sqlite3.OperationalError as error:
            raise CatalogUnsupported(
                f"this Python's SQLite has no full-text search: {error}"
            ) from error


def add(write: Connection, scope_id: int, chunks: Iterable[ChunkWords]) -> None:
    """Index chunks; create the scope's table if it does not exist."""
    table = _table(scope_id)
    write.exec_driver_sql(
        f"CREATE VIRTUAL TABLE IF NOT EXISTS {table} USING fts5("
        f"body, content = '', tokenize = '{TOKENIZER}')"
    )
    rows = [(chunk_id, indexed_text(title, text)) for chunk_id, title, text in chunks]
    if rows:
        write.exec_driver_sql(f"INSERT INTO {table} (rowid, body) VALUES (?, ?)", rows)


def remove(write: Connection, scope_id: int, chunks: Iterable[ChunkWords]) -> None:
    """Remove chunks. Their texts must be those they were added with: FTS5 does not keep them."""
    table = _table(scope_id)
    rows = [("delete", chunk_id, indexed_text(title, text)) for chunk_id, title, text in chunks]
    if rows:
        write.exec_driver_sql(f"INSERT INTO {table} ({table}, rowid, body) VALUES (?, ?, ?)", rows)
        write.exec_driver_sql("UPDATE scopes SET stale = 1 WHERE scope_id = ?", (scope_id,))


def drop(write: Connection, scope_id: int) -> None:
    """Delete the table of a scope that has no documents any more."""
    write.exec_driver_sql(f"DROP TABLE IF EXISTS {_table(scope_id)}")


def purge(write: Connection) -> None:
    """Merge the segments of stale scopes, so that no page holds words of removed chunks."""
    for (scope_id,) in write.exec_driver_sql("SELECT scope_id FROM scopes WHERE stale").all():
        table = _table(scope_id)
        write.exec_driver_sql(f"INSERT INTO {table} ({table}) VALUES ('optimize')")
        write.exec_driver_sql("UPDATE scopes SET stale = 0 WHERE scope_id = ?", (scope_id,))


def search(
    connection: Connection,
    scope_id: int,
    query: str,
    k: int,
    allowed_ids: Collection[int] | None = None,
) -> list[tuple[int, float]]:
    """See FullText.search."""
    expression = match_expression(query)
    if not expression or k <= 0:
        return []
    table = _table(scope_id)
    among = "" if allowed_ids is None else "AND rowid IN (SELECT value FROM json_each(?))"
    ids = () if allowed_ids is None else (json.dumps(list(allowed_ids)),)
    driver: Any = connection.connection.driver_connection  # as Prepared does, and for its reason
    found = driver.execute(
        f"SELECT rowid, -rank FROM {table} WHERE {table} MATCH ? {among} "
        "ORDER BY rank, rowid LIMIT ?",
        (expression, *ids, k),
    )
    return [(int(chunk_id), float(score)) for chunk_id, score in found]


def _table(scope_id: int) -> str:
    return f"sparse_{int(scope_id)}"
