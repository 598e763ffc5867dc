"""API keys in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from retriever.sql.connection import Connection
from retriever.sql.postgresql import Postgresql
from service.gateway import shared_schema


class PostgresqlKeyDatabase:
    """Satisfies `KeyDatabase`.

    Args:
        postgresql: The pool of connections, over `shared_schema.SCHEMA`. Its owner closes it.
    """

    def __init__(self, postgresql: Postgresql) -> None:
        self._postgresql = postgresql

    def start(self) -> None:
        shared_schema.start(self._postgresql)

    def close(self) -> None:
        """The pool belongs to its owner."""

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """One transaction."""
        with shared_schema.translated(), self._postgresql.transaction() as connection:
            yield connection
