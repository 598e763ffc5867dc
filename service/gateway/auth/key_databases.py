"""Where API keys are: keys.sqlite3 in the data folder, or PostgreSQL."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from retriever.sql.connection import Connection, SqliteConnection
from service.errors import InternalError, InvalidSetting

_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    key_id TEXT PRIMARY KEY, secret_sha256 BLOB NOT NULL, name TEXT NOT NULL,
    tenant TEXT NOT NULL, scopes TEXT NOT NULL, created REAL NOT NULL,
    expires REAL, revoked REAL,
    documents INTEGER, bytes INTEGER, requests_per_minute INTEGER, tokens_per_minute INTEGER,
    adapter TEXT NOT NULL DEFAULT ''
)
"""


class KeyDatabase(Protocol):
    """The table `keys`. Thread-safe; every call blocks."""

    def start(self) -> None:
        """Open it, and create the table if need be.

        Raises:
            InvalidSetting: It cannot be used.
        """

    def close(self) -> None: ...

    def connection(self) -> AbstractContextManager[Connection]:
        """Every statement is a transaction of its own, or all of them together are one."""


class SqliteKeyDatabase:
    """A file; the gateway and the command line open the same one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: SqliteConnection | None = None

    def start(self) -> None:
        if self._connection is not None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            connection = sqlite3.connect(
                self._path,
                check_same_thread=False,
                isolation_level=None,
                timeout=10,
                factory=SqliteConnection,
            )
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(_SCHEMA)
            _add_adapter(connection)
        except (OSError, sqlite3.Error) as error:
            raise InvalidSetting(f"the key store {self._path} cannot be used: {error}") from error
        self._connection = connection

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """The connection, for one thread at a time."""
        with self._lock:
            if self._connection is None:
                raise InternalError("the key store is not open")
            yield self._connection


def _add_adapter(connection: sqlite3.Connection) -> None:
    """Adds the column to a file that was made before there was one."""
    connection.execute("BEGIN IMMEDIATE")
    if "adapter" not in {row["name"] for row in connection.execute("PRAGMA table_info(keys)")}:
        connection.execute("ALTER TABLE keys ADD COLUMN adapter TEXT NOT NULL DEFAULT ''")
    connection.execute("COMMIT")
