"""API keys in keys.sqlite3, without their secrets.

The gateway and the command line open the same file: a key that one revokes, the other refuses at
once.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service.errors import InternalError, InvalidRequest, InvalidSetting, NotFound
from service.gateway.auth import key_text
from service.gateway.auth.quotas import Limits

_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    key_id TEXT PRIMARY KEY, secret_sha256 BLOB NOT NULL, name TEXT NOT NULL,
    tenant TEXT NOT NULL, scopes TEXT NOT NULL, created REAL NOT NULL,
    expires REAL, revoked REAL,
    documents INTEGER, bytes INTEGER, requests_per_minute INTEGER, tokens_per_minute INTEGER,
    adapter TEXT NOT NULL DEFAULT ''
)
"""
MAX_NAME_CHARS = 64


@dataclass(frozen=True)
class StoredKey:
    """A key without its secret. Times are in Unix seconds.

    adapter: the LoRA adapter that answers its requests; "": it is bound to none.
    """

    key_id: str
    name: str
    tenant: str
    scopes: frozenset[str]
    limits: Limits
    created: float
    expires: float | None
    revoked: float | None
    adapter: str = ""

    def valid(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)


class KeyStore:
    """Opened by start(). Thread-safe; a look-up reads one or two pages, which are in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def start(self) -> None:
        """Open the file, and create it if need be.

        Raises:
            InvalidSetting: It cannot be used.
        """
        if self._connection is not None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            connection = sqlite3.connect(
                self._path, check_same_thread=False, isolation_level=None, timeout=10
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

    def create(
        self,
        *,
        tenant: str = "",
        name: str = "",
        adapter: str = "",
        scopes: frozenset[str] = frozenset(key_text.SCOPES),
        limits: Limits | None = None,
        expires: float | None = None,
    ) -> tuple[str, StoredKey]:
        """Make a key.

        Args:
            tenant: Whose documents it sees.
            name: For people.
            adapter: The LoRA adapter that answers its requests; "": any that they name.
            scopes: What it may do.
            limits: Its quotas; None: no limits.
            expires: Unix seconds; None: never.

        Returns:
            The key, which cannot be read again, and what is stored of it.

        Raises:
            InvalidRequest: A scope is unknown, or tenant, name or adapter is too long.
        """
        limits = limits or Limits()
        if unknown := scopes - set(key_text.SCOPES):
            raise InvalidRequest(
                f"there is no scope {sorted(unknown)[0]!r}: use {', '.join(key_text.SCOPES)}",
                field="scopes",
            )
        for field, value in (("tenant", tenant), ("name", name), ("adapter", adapter)):
            if len(value) > MAX_NAME_CHARS or not value.isprintable():
                raise InvalidRequest(
                    f"{field} may have up to {MAX_NAME_CHARS} printable characters", field=field
                )
        key, key_id, digest = key_text.new_key()
        with self._open() as connection:
            connection.execute(
                "INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, NULL, ?, ?, ?, ?, ?)",
                (
                    key_id,
                    digest,
                    name,
                    tenant,
                    " ".join(sorted(scopes)),
                    time.time(),
                    expires,
                    limits.documents,
                    limits.bytes,
                    limits.requests_per_minute,
                    limits.tokens_per_minute,
                    adapter,
                ),
            )
        return key, self._get(key_id)

    def find(self, key: str) -> StoredKey | None:
        """The valid key with this text, None if there is none."""
        parsed = key_text.parse(key)
        if parsed is None:
            return None
        key_id, secret = parsed
        with self._open() as connection:
            row = connection.execute("SELECT * FROM keys WHERE key_id = ?", (key_id,)).fetchone()
        # Compare for an unknown id too, so that it takes as long as a wrong secret.
        expected = row["secret_sha256"] if row is not None else bytes(32)
        if not key_text.equal(key_text.digest(secret), expected) or row is None:
            return None
        found = _stored(row)
        return found if found.valid(time.time()) else None

    def all(self) -> list[StoredKey]:
        """All keys, oldest first, including revoked and expired ones."""
        with self._open() as connection:
            rows = connection.execute("SELECT * FROM keys ORDER BY created, key_id").fetchall()
        return [_stored(row) for row in rows]

    def any(self) -> bool:
        """Whether a key was ever made; revoking the last one must not open the service."""
        with self._open() as connection:
            return connection.execute("SELECT 1 FROM keys LIMIT 1").fetchone() is not None

    def revoke(self, key_id: str) -> StoredKey:
        """Refuse the key from now on; revoking it again changes nothing.

        Raises:
            NotFound: There is no such key.
        """
        with self._open() as connection:
            connection.execute(
                "UPDATE keys SET revoked = coalesce(revoked, ?) WHERE key_id = ?",
                (time.time(), key_id),
            )
        return self._get(key_id)

    def _get(self, key_id: str) -> StoredKey:
        with self._open() as connection:
            row = connection.execute("SELECT * FROM keys WHERE key_id = ?", (key_id,)).fetchone()
        if row is None:
            raise NotFound(f"there is no key {key_id!r}; `kvstitch keys list` shows them")
        return _stored(row)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
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


def _stored(row: sqlite3.Row) -> StoredKey:
    return StoredKey(
        key_id=row["key_id"],
        name=row["name"],
        tenant=row["tenant"],
        scopes=frozenset(row["scopes"].split()),
        limits=Limits(
            row["documents"], row["bytes"], row["requests_per_minute"], row["tokens_per_minute"]
        ),
        created=row["created"],
        expires=row["expires"],
        revoked=row["revoked"],
        adapter=row["adapter"],
    )
