"""The catalog in an SQLite file: connections and transactions.

WAL mode: readers see a snapshot and never wait for the writer. Thread-safe: one connection writes,
behind a lock; readers borrow connections from a pool that grows to the number of concurrent reads.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retriever.catalog.filter_sql import conditions
from retriever.catalog.schema import prepare
from retriever.documents import DocFilter, Document
from retriever.errors import CatalogError, CatalogNotStarted
from retriever.index import bm25
from retriever.index.full_text import FullText
from retriever.sql.connection import Connection, SqliteConnection


class SqliteDatabase:
    """Connections to one SQLite file.

    Args:
        path: the file.
        wait_s: how long a write waits for the write of another process, in seconds.
    """

    shared = False
    words: FullText = bm25

    def __init__(self, path: Path, *, wait_s: float = 10.0) -> None:
        self._path = path
        self._wait_s = wait_s
        self._writing = threading.Lock()
        self._pooling = threading.Lock()
        self._writer: SqliteConnection | None = None
        self._idle: list[SqliteConnection] = []

    def start(self) -> None:
        """Open the file, creating or upgrading its schema.

        Raises:
            CatalogError: SQLite cannot open it.
            CatalogUnsupported: its schema is of another version than this code reads.
        """
        with self._writing:
            if self._writer is not None:
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with _translated():
                connection = self._connect()
                try:
                    connection.execute("PRAGMA journal_mode = WAL")
                    prepare(connection, self._path)
                except BaseException:
                    connection.close()
                    raise
            self._writer = connection

    def close(self) -> None:
        """Close all idle connections; a read under way keeps its own until it ends."""
        with self._writing, self._pooling:
            for connection in [*self._idle, *([self._writer] if self._writer else [])]:
                connection.close()
            self._idle.clear()
            self._writer = None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection that sees one snapshot during the whole block."""
        with _translated():
            connection = self._borrow()
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                connection.rollback()
                self._give_back(connection)

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction: commits at the end of the block, rolls back on any error."""
        with self._writing, _translated():
            writer = self._require_writer()
            writer.execute("BEGIN IMMEDIATE")
            try:
                yield writer
                writer.execute("COMMIT")
            except BaseException:
                writer.rollback()
                raise

    def scrub(self) -> None:
        """Empty the write-ahead log, which still holds old versions of overwritten pages.

        Raises:
            CatalogError: reads under way did not end in time.
        """
        with self._writing, _translated():
            busy, *_ = self._require_writer().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise CatalogError("the catalog's log is being read, and was not emptied; try again")

    def name(self, write: Connection, number: int, document: Document) -> None:
        """A function of ours compares ids and titles as they are."""

    def conditions(self, doc_filter: DocFilter | None) -> tuple[str, list[Any]]:
        return conditions(doc_filter)

    def _require_writer(self) -> SqliteConnection:
        if self._writer is None:
            raise CatalogNotStarted("call start() before the catalog is used")
        return self._writer

    def _borrow(self) -> SqliteConnection:
        with self._pooling:
            self._require_writer()
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _give_back(self, connection: SqliteConnection) -> None:
        with self._pooling:
            if self._writer is None:
                connection.close()
            else:
                self._idle.append(connection)

    def _connect(self) -> SqliteConnection:
        connection = sqlite3.connect(
            self._path,
            timeout=self._wait_s,
            isolation_level=None,
            check_same_thread=False,
            factory=SqliteConnection,
        )
        connection.row_factory = sqlite3.Row
        # SQLite's own lower() knows ASCII only.
        connection.create_function("casefold", 1, str.casefold, deterministic=True)
        connection.execute("PRAGMA foreign_keys = ON")
        # An acknowledged document survives a power cut; embedding costs far more than this fsync.
        connection.execute("PRAGMA synchronous = FULL")
        # Deleted content is overwritten, and no copy of a page goes to a temporary file.
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise CatalogError(f"the catalog failed: {error}") from error
