"""What the catalog asks of the database that it is in: SQLite's file, or PostgreSQL."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from retriever.documents import DocFilter, Document
from retriever.index.full_text import FullText
from retriever.sql.connection import Connection


class Database(Protocol):
    """Transactions for the catalog. Thread-safe; every call blocks.

    Attributes:
        shared: whether other processes change it, too. Changes are logged then, so that each can
            follow the others'.
        words: the full-text index.
    """

    @property
    def shared(self) -> bool: ...

    @property
    def words(self) -> FullText: ...

    def start(self) -> None:
        """Open it, creating or upgrading the schema.

        Raises:
            CatalogError: it cannot be opened.
            CatalogUnsupported: its schema is of another version than this code reads.
        """

    def close(self) -> None: ...

    def read(self) -> AbstractContextManager[Connection]:
        """A connection that sees one snapshot during the whole block."""

    def write(self) -> AbstractContextManager[Connection]:
        """A transaction: commits at the end of the block, rolls back on any error. One at a
        time."""

    def scrub(self) -> None:
        """Remove what was deleted from the files, where the database can.

        Raises:
            CatalogError: reads under way did not end in time.
        """

    def name(self, write: Connection, number: int, document: Document) -> None:
        """Make a document findable by parts of its id and title, if that needs preparation."""

    def conditions(self, doc_filter: DocFilter | None) -> tuple[str, list[Any]]:
        """A WHERE condition over `documents`, and its values; for None it is always true."""
