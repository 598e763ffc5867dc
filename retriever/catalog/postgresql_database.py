"""The catalog in PostgreSQL, where several gateways share it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retriever.catalog.filter_postgresql import conditions
from retriever.catalog.postgresql_schema import STEPS
from retriever.documents import DocFilter, Document
from retriever.index import postings
from retriever.index.full_text import FullText
from retriever.sql.catalog_errors import translated
from retriever.sql.connection import Connection
from retriever.sql.postgresql import Postgresql

SCHEMA = "kvstitch_catalog"
WRITING = 0x6B76_0002  # number of the advisory lock: one write at a time, as in SQLite


class PostgresqlDatabase:
    """Satisfies `Database`.

    Args:
        postgresql: the pool of connections, over `SCHEMA`. Its owner closes it.
    """

    shared = True
    words: FullText = postings

    def __init__(self, postgresql: Postgresql) -> None:
        self._postgresql = postgresql

    def start(self) -> None:
        """Connect, and bring the tables up to date.

        Raises:
            CatalogError: it cannot be reached, or a later release has written it.
        """
        with translated():
            self._postgresql.start()
            self._postgresql.migrate(STEPS)

    def close(self) -> None:
        """The pool belongs to its owner."""

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection that sees one snapshot during the whole block."""
        with translated(), self._postgresql.transaction(snapshot=True) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction: commits at the end of the block, rolls back on any error."""
        with translated(), self._postgresql.transaction(lock=WRITING) as connection:
            yield connection

    def scrub(self) -> None:
        """VACUUM does it, when PostgreSQL decides to."""

    def name(self, write: Connection, number: int, document: Document) -> None:
        """Fold case here: what PostgreSQL folds depends on its locale."""
        write.execute(
            "UPDATE documents SET folded_id = ?, folded_title = ? WHERE document = ?",
            (document.doc_id.casefold(), document.title.casefold(), number),
        )

    def conditions(self, doc_filter: DocFilter | None) -> tuple[str, list[Any]]:
        return conditions(doc_filter)
