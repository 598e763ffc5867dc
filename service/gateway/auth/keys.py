"""API keys in a database, without their secrets.

The gateway and the command line open the same file: a key that one revokes, the other refuses at
once. In PostgreSQL it takes a second (key_cache.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from retriever.sql.connection import Row
from service.errors import InvalidRequest, NotFound
from service.gateway.auth import key_text
from service.gateway.auth.key_databases import KeyDatabase, SqliteKeyDatabase
from service.gateway.auth.quotas import Limits

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
    """Opened by start(). Thread-safe; a look-up in a file reads pages that are in memory.

    Args:
        where: The database of the keys; a path: a file.
    """

    def __init__(self, where: KeyDatabase | Path) -> None:
        self._database = SqliteKeyDatabase(where) if isinstance(where, Path) else where

    def start(self) -> None:
        """Open it, and create it if need be.

        Raises:
            InvalidSetting: It cannot be used.
        """
        self._database.start()

    def close(self) -> None:
        self._database.close()

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
        with self._database.connection() as connection:
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
        with self._database.connection() as connection:
            row = connection.execute("SELECT * FROM keys WHERE key_id = ?", (key_id,)).fetchone()
        # Compare for an unknown id too, so that it takes as long as a wrong secret.
        expected = row["secret_sha256"] if row is not None else bytes(32)
        if not key_text.equal(key_text.digest(secret), expected) or row is None:
            return None
        found = _stored(row)
        return found if found.valid(time.time()) else None

    def all(self) -> list[StoredKey]:
        """All keys, oldest first, including revoked and expired ones."""
        with self._database.connection() as connection:
            rows = connection.execute("SELECT * FROM keys ORDER BY created, key_id").fetchall()
        return [_stored(row) for row in rows]

    def with_digests(self) -> list[tuple[StoredKey, bytes]]:
        """All keys, each with the SHA-256 of its secret."""
        with self._database.connection() as connection:
            rows = connection.execute("SELECT * FROM keys").fetchall()
        return [(_stored(row), row["secret_sha256"]) for row in rows]

    def any(self) -> bool:
        """Whether a key was ever made; revoking the last one must not open the service."""
        with self._database.connection() as connection:
            return connection.execute("SELECT 1 FROM keys LIMIT 1").fetchone() is not None

    def revoke(self, key_id: str) -> StoredKey:
        """Refuse the key from now on; revoking it again changes nothing.

        Raises:
            NotFound: There is no such key.
        """
        with self._database.connection() as connection:
            connection.execute(
                "UPDATE keys SET revoked = coalesce(revoked, ?) WHERE key_id = ?",
                (time.time(), key_id),
            )
        return self._get(key_id)

    def _get(self, key_id: str) -> StoredKey:
        with self._database.connection() as connection:
            row = connection.execute("SELECT * FROM keys WHERE key_id = ?", (key_id,)).fetchone()
        if row is None:
            raise NotFound(f"there is no key {key_id!r}; `kvstitch keys list` shows them")
        return _stored(row)


def _stored(row: Row) -> StoredKey:
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
