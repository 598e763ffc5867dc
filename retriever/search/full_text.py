"""What a full-text index does; callers hold a transaction.

A chunk's words are committed with the chunk, so this index is never behind, needs no saving and no
rebuild. `bm25` keeps them in SQLite's FTS5, `postings` in tables of PostgreSQL. Both split, fold
and stem alike (fts5_text.py), and score by the same formula.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from sqlalchemy import Connection

# chunk_id, title, text
ChunkWords = tuple[int, str, str]


class FullText(Protocol):
    """Chunks of scopes, found by words."""

    def add(self, write: Connection, scope_id: int, chunks: Iterable[ChunkWords]) -> None:
        """Index chunks."""

    def remove(self, write: Connection, scope_id: int, chunks: Iterable[ChunkWords]) -> None:
        """Remove chunks, which must come with the texts that they were added with."""

    def drop(self, write: Connection, scope_id: int) -> None:
        """Forget a scope that has no documents any more."""

    def purge(self, write: Connection) -> None:
        """Make sure that no table holds words of removed chunks."""

    def search(
        self,
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
