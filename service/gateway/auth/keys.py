"""API keys in a database, without their secrets.

The gateway and the command line open the same file: a key that one revokes, the other refuses at
once. In PostgreSQL it takes a second (key_cache.py).
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from sqlalchemy import bindparam, select

from retriever.readers import EVERYTHING, GROUP_RULE, View, is_group
from retriever.sql.expressions import Prepared
from service.errors import InvalidRequest, NotFound
from service.gateway.auth import key_text
from service.gateway.auth.quotas import Limits
from service.gateway.service_database import ServiceDatabase
from service.gateway.tables import KEYS, keys
from service.settings.fields import SCOPES

MAX_NAME_CHARS = 64


@dataclass(frozen=True)
class StoredKey:
    """A key without its secret. Times are in Unix seconds.

    adapter: the LoRA adapter that answers its requests; "": it is bound to none.
    view: what it may read of its tenant's documents.
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
    view: View = EVERYTHING

    def valid(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)


class KeyStore:
    """Opened by start(). Thread-safe; a look-up in a file reads pages that are in memory.

    Args:
        where: The database of the keys, or the path of a file.
    """

    def __init__(self, where: ServiceDatabase | Path) -> None:
        self._database = ServiceDatabase(where, [KEYS]) if isinstance(where, Path) else where

    def start(self) -> None:
        """Open it, and create it if need be."""
        self._database.start()

    def close(self) -> None:
        self._database.close()

    def create(
        self,
        *,
        tenant: str = "",
        name: str = "",
        adapter: str = "",
        view: View = EVERYTHING,
        scopes: frozenset[str] = frozenset(SCOPES),
        limits: Limits | None = None,
        expires: float | None = None,
    ) -> tuple[str, StoredKey]:
        """Make a key.

        Args:
            tenant: Whose documents it sees.
            name: For people.
            adapter: The LoRA adapter that answers its requests; "": any that they name.
            view: What it may read.
            scopes: What it may do.
            limits: Its quotas; None: no limits.
            expires: Unix seconds; None: never.

        Returns:
            The key, which cannot be read again, and what is stored of it.

        Raises:
            InvalidRequest: A scope is unknown, tenant, name or adapter is too long, or no group can
                have such a name.
        """
        limits = limits or Limits()
        if unknown := scopes - set(SCOPES):
            raise InvalidRequest(
                f"there is no scope {sorted(unknown)[0]!r}: use {', '.join(SCOPES)}",
                field="scopes",
            )
        for field, value in (("tenant", tenant), ("name", name), ("adapter", adapter)):
            if len(value) > MAX_NAME_CHARS or not value.isprintable():
                raise InvalidRequest(
                    f"{field} may have up to {MAX_NAME_CHARS} printable characters", field=field
                )
        if wrong := sorted(group for group in view.groups or () if not is_group(group)):
            raise InvalidRequest(f"{wrong[0]!r} cannot be a group: {GROUP_RULE}", field="groups")
        key, key_id, digest = key_text.new_key()
        row = {
            "key_id": key_id,
            "secret_sha256": digest,
            "name": name,
            "tenant": tenant,
            "scopes": " ".join(sorted(scopes)),
            "created": time.time(),
            "expires": expires,
            "adapter": adapter,
            "groups": view.name,
            **asdict(limits),
        }
        with self._database.write() as write:
            write.execute(keys.insert(), row)
        return key, self._get(key_id)

    def find(self, key: str) -> StoredKey | None:
        """Return the valid key with this text, None if there is none."""
        parsed = key_text.parse(key)
        if parsed is None:
            return None
        key_id, secret = parsed
        with self._database.read() as read:
            row = _BY_ID.row(read, key_id=key_id)
        # Compare for an unknown id too, so that it takes as long as a wrong secret.
        expected = row[_SECRET] if row is not None else bytes(32)
        if not key_text.equal(key_text.digest(secret), expected) or row is None:
            return None
        found = _stored(row)
        return found if found.valid(time.time()) else None

    def all(self) -> list[StoredKey]:
        """Return all keys, oldest first, including revoked and expired ones."""
        return [key for key, _ in self.with_digests()]

    def with_digests(self) -> list[tuple[StoredKey, bytes]]:
        """Return all keys, each with the SHA-256 of its secret."""
        with self._database.read() as read:
            return [(_stored(row), row[_SECRET]) for row in _ALL.rows(read)]

    def any(self) -> bool:
        """Return whether a key was ever made; revoking the last one must not open the service."""
        with self._database.read() as read:
            return _ANY.row(read) is not None

    def revoke(self, key_id: str) -> StoredKey:
        """Refuse the key from now on; revoking it again changes nothing. Raises NotFound."""
        valid = keys.c.key_id == key_id, keys.c.revoked.is_(None)
        with self._database.write() as write:
            write.execute(keys.update().where(*valid).values(revoked=time.time()))
        return self._get(key_id)

    def _get(self, key_id: str) -> StoredKey:
        with self._database.read() as read:
            row = _BY_ID.row(read, key_id=key_id)
        if row is None:
            raise NotFound(f"there is no key {key_id!r}; `kvstitch keys list` shows them")
        return _stored(row)


# Every request asks for its key, so that these do not go through SQLAlchemy's execution.
_BY_ID = Prepared(select(keys).where(keys.c.key_id == bindparam("key_id")))
_ALL = Prepared(select(keys).order_by(keys.c.created, keys.c.key_id))
_ANY = Prepared(select(keys.c.key_id).limit(1))
_SECRET = list(keys.columns.keys()).index("secret_sha256")


def _stored(row: tuple[Any, ...]) -> StoredKey:
    fields = dict(zip(keys.columns.keys(), row, strict=True))
    del fields["secret_sha256"]
    limits = Limits(**{each.name: fields.pop(each.name) for each in dataclass_fields(Limits)})
    scopes, view = frozenset(fields.pop("scopes").split()), View.named(fields.pop("groups"))
    return StoredKey(**fields, scopes=scopes, limits=limits, view=view)
