"""Keyword search: BM25 by SQLite's FTS5, in tables of the catalog. Callers hold a transaction.

A chunk's words are committed with the chunk, so this index is never behind, needs no saving and no
rebuild. Every scope has its own table. In a common table, the score of a word would depend on other
tenants' documents and tell about them.

The tables hold no text (content=''). FTS5 keeps removed words in its older segments until they are
merged, so a scope from which something was removed is marked `stale` until `purge`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from retriever.index.full_text import TOKENIZER, ChunkWords, indexed_text, match_expression
from retriever.sql.connection import Connection


def add(write: Connection, scope_id: int, chunks: Iterable[ChunkWords]) -> None:
    """Index chunks; creates the scope's table if it does not exist."""
    table = _table(scope_id)
    write.execute(
        f"CREATE VIRTUAL TABLE IF NOT EXISTS {table} USING fts5("
        f"body, content = '', tokenize = '{TOKENIZER}')"
    )
    rows = ((chunk_id, indexed_text(title, text)) for chunk_id, title, text in chunks)
    write.executemany(f"INSERT INTO {table} (rowid, body) VALUES (?, ?)", rows)


def remove(write: Connection, scope_id: int, chunks: Iterable[ChunkWords]) -> None:
    """Remove chunks. Their texts must be those they were added with: FTS5 does not keep them."""
    table = _table(scope_id)
    rows = [("delete", chunk_id, indexed_text(title, text)) for chunk_id, title, text in chunks]
    write.executemany(f"INSERT INTO {table} ({table}, rowid, body) VALUES (?, ?, ?)", rows)
    if rows:
        write.execute("UPDATE scopes SET stale = 1 WHERE scope_id = ?", (scope_id,))


def drop(write: Connection, scope_id: int) -> None:
    """Delete the table of a scope that has no documents any more."""
    write.execute(f"DROP TABLE IF EXISTS {_table(scope_id)}")


def purge(write: Connection) -> None:
    """Merge the segments of stale scopes, so that no page holds words of removed chunks."""
    stale = write.execute("SELECT scope_id FROM scopes WHERE stale").fetchall()
    for row in stale:
        table = _table(row["scope_id"])
        write.execute(f"INSERT INTO {table} ({table}) VALUES ('optimize')")
        write.execute("UPDATE scopes SET stale = 0 WHERE scope_id = ?", (row["scope_id"],))


def search(
    connection: Connection,
    scope_id: int,
    query: str,
    k: int,
    allowed_ids: Collection[int] | None = None,
) -> list[tuple[int, float]]:
    """The `k` best chunks that have any of the query's words.

    Any text is a valid query; one without words finds nothing.

    Returns:
        (chunk_id, BM25 score), best first, ties by id.
    """
    expression = match_expression(query)
    if not expression or k <= 0:
        return []
    table = _table(scope_id)
    among = "" if allowed_ids is None else f"AND rowid {connection.in_numbers}"
    ids = () if allowed_ids is None else (connection.listed(allowed_ids),)
    found = connection.execute(
        f"SELECT rowid, -rank AS score FROM {table} WHERE {table} MATCH ? {among} "
        "ORDER BY rank, rowid LIMIT ?",
        (expression, *ids, k),
    )
    return [(int(row["rowid"]), float(row["score"])) for row in found]


def _table(scope_id: int) -> str:
    return f"sparse_{int(scope_id)}"
