"""SQLite connections and transactions. Knows no tables (see schema.py).

WAL mode: readers see a snapshot and never wait for the writer. Thread-safe: one connection
writes, behind a lock; readers borrow from a pool that grows to the number of concurrent reads.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retriever.catalog.schema import prepare
from retriever.errors import CatalogError, CatalogNotStarted


class Database:
    """Opened by start(); `wait_s` is how long a write waits for another process's write."""

    def __init__(self, path: Path, *, wait_s: float = 10.0) -> None:
        self._path = path
        self._wait_s = wait_s
        self._writing = threading.Lock()
        self._pooling = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._idle: list[sqlite3.Connection] = []

    def start(self) -> None:
        """Open, creating or updating the schema. Raises CatalogError, CatalogUnsupported."""
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
        """Reads that are under way end first on their own connections."""
        with self._writing, self._pooling:
            for connection in [*self._idle, *([self._writer] if self._writer else [])]:
                connection.close()
            self._idle.clear()
            self._writer = None

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """One snapshot for all queries of the block."""
        with _translated():
            connection = self._borrow()
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                connection.rollback()
                self._give_back(connection)

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """All of the block or, on any error, nothing of it."""
        with self._writing, _translated():
            writer = self._require_writer()
            writer.execute("BEGIN IMMEDIATE")
            try:
                yield writer
                writer.execute("COMMIT")
            except BaseException:
                writer.rollback()
                raise

    def truncate_log(self) -> None:
        """Empty the write-ahead log: it holds pages as they were before they were overwritten.

        Raises CatalogError if reads that are under way do not end in time.
        """
        with self._writing, _translated():
            busy, *_ = self._require_writer().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise CatalogError("the catalog's log is being read, and was not emptied; try again")

    def _require_writer(self) -> sqlite3.Connection:
        if self._writer is None:
            raise CatalogNotStarted("call start() before the catalog is used")
        return self._writer

    def _borrow(self) -> sqlite3.Connection:
        with self._pooling:
            self._require_writer()
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._pooling:
            if self._writer is None:
                connection.close()
            else:
                self._idle.append(connection)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=self._wait_s, isolation_level=None, check_same_thread=False
        )
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA foreign_keys = ON")
        # An acknowledged document survives a power cut; embedding costs far more than this fsync.
        connection.execute("PRAGMA synchronous = FULL")
        # What is deleted is overwritten, and no copy of a page goes to a temporary file.
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise CatalogError(f"the catalog failed: {error}") from error
