"""SQLite connections, transactions and the schema. Knows no documents or vectors as objects.

WAL mode: readers see a snapshot and never wait for the writer. Thread-safe: one connection
writes, behind a lock; readers borrow from a pool that grows to the number of concurrent reads.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retriever.errors import CatalogError, CatalogNotStarted, CatalogUnsupported

SCHEMA_VERSION = 1

# `state` has one row: the generation rises by one with each change, and the token is new with each
# change, so that a restored backup that reaches the same generation is not taken for the same.
_SCHEMA = """
CREATE TABLE state (generation INTEGER NOT NULL, token TEXT NOT NULL);
INSERT INTO state VALUES (0, 'empty');
CREATE TABLE spaces (
    space_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    revision TEXT NOT NULL,
    dim INTEGER NOT NULL,
    UNIQUE (name, revision, dim)
);
CREATE TABLE documents (
    doc_id TEXT PRIMARY KEY,
    revision TEXT NOT NULL,
    space_id INTEGER NOT NULL REFERENCES spaces,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    num_chars INTEGER NOT NULL,
    title TEXT NOT NULL,
    metadata TEXT NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX documents_by_space ON documents (space_id);
CREATE TABLE chunks (
    chunk_id INTEGER PRIMARY KEY AUTOINCREMENT,
    doc_id TEXT NOT NULL REFERENCES documents ON DELETE CASCADE,
    ordinal INTEGER NOT NULL,
    char_start INTEGER NOT NULL,
    char_end INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    text TEXT NOT NULL,
    UNIQUE (doc_id, ordinal)
);
CREATE TABLE vectors (
    chunk_id INTEGER PRIMARY KEY REFERENCES chunks ON DELETE CASCADE,
    space_id INTEGER NOT NULL REFERENCES spaces,
    vector BLOB NOT NULL
);
"""


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
        """Open, creating the schema in a new file. Raises CatalogError, CatalogUnsupported."""
        with self._writing:
            if self._writer is not None:
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with _translated():
                connection = self._connect()
                try:
                    _prepare(connection, self._path)
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
            if self._writer is None:
                raise CatalogNotStarted("call start() before the catalog is used")
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                self._writer.rollback()
                raise

    def _borrow(self) -> sqlite3.Connection:
        with self._pooling:
            if self._writer is None:
                raise CatalogNotStarted("call start() before the catalog is used")
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
        return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    elif version != SCHEMA_VERSION:
        raise CatalogUnsupported(
            f"{path} has schema version {version}, this release reads {SCHEMA_VERSION}"
        )
    connection.execute("COMMIT")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise CatalogError(f"the catalog failed: {error}") from error
