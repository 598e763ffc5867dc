"""API keys: the text kvs_<id>_<secret>, and what a database holds of them, without their secrets.

The gateway and the command line open the same file: a key that one revokes, the other refuses at
once. Of PostgreSQL a gateway holds a copy, so that no request waits for it: a key that is made or
revoked elsewhere counts after REFRESH_S, and if the database does not answer, what is known counts
for MAX_AGE_S; then requests are refused.
"""

import asyncio
import contextlib
import hashlib
import hmac
import re
import secrets
import time
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, Final

from sqlalchemy import bindparam, select

from kvstitch.retriever.scope import EVERYTHING, GROUP_RULE, SEPARATOR, Pen, View, is_group
from kvstitch.retriever.sql.expressions import Prepared
from kvstitch.service.errors import DatabaseUnavailable, InvalidRequest, NotFound
from kvstitch.service.gateway.auth.quotas import Limits
from kvstitch.service.gateway.service_database import ServiceDatabase
from kvstitch.service.gateway.tables import KEYS, keys
from kvstitch.service.settings.fields import SCOPES, SHARE

MAX_NAME_CHARS = 64
REFRESH_S = 1.0
MAX_AGE_S = 60.0
KEY_PREFIX: Final = "kvs_"
SUBJECT: Final = "sub:"
_KEY = re.compile(r"kvs_([0-9a-f]{16})_([0-9a-f]{64})")
_Row = tuple[Any, ...]


def new_key() -> tuple[str, str, bytes]:
    """Return a new key, its id, and the SHA-256 of its secret. The key itself is stored nowhere."""
    key_id, secret = secrets.token_hex(8), secrets.token_hex(32)
    return f"{KEY_PREFIX}{key_id}_{secret}", key_id, _digest(secret)


def _digest(secret: str) -> bytes:
    """Return the plain SHA-256: 256 random bits cannot be guessed, as passwords can."""
    return hashlib.sha256(secret.encode()).digest()


@dataclass(frozen=True)
class Sender:
    """What somebody may do."""

    tenant: str  # whose documents they see; "": the unnamed tenant
    key_id: str  # of an API key, or `sub:` and the subject of a token; "": they have neither
    scopes: frozenset[str]
    limits: Limits = field(default_factory=Limits)
    adapter: str = ""  # the LoRA adapter that the key is bound to; "": none
    view: View = EVERYTHING  # what they may read of the tenant's documents
    writes: frozenset[str] | None = None  # the groups that they write for; None: those of the view

    @property
    def pen(self) -> Pen:
        """What they may change of the tenant's documents."""
        groups = self.view.groups if self.writes is None else self.writes
        return Pen(groups, SHARE in self.scopes)

    @property
    def limited(self) -> bool:
        """Whether there are documents that they may not read."""
        return bool(self.tenant) or self.view.groups is not None

    @property
    def subject(self) -> str:
        """Of a token."""
        return self.key_id.removeprefix(SUBJECT)


@dataclass(frozen=True, kw_only=True)
class StoredKey(Sender):
    """A key without its secret. Times are in Unix seconds."""

    name: str
    created: float
    expires: float | None
    revoked: float | None

    def valid(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)


class KeyStore:
    """Opened by start(). Thread-safe; a look-up in a file reads pages that are in memory."""

    def __init__(self, where: ServiceDatabase | Path) -> None:
        self._database = ServiceDatabase(where, [KEYS]) if isinstance(where, Path) else where

    def start(self) -> None:
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
        writes: frozenset[str] | None = None,
        scopes: frozenset[str] = frozenset(SCOPES),
        limits: Limits | None = None,
        expires: float | None = None,
    ) -> tuple[str, StoredKey]:
        """Make a key: return it, which cannot be read again, and what is stored of it. `adapter`:
        the LoRA adapter that answers its requests ("": any that they name); `writes`: the groups
        that it writes for (None: those whose documents it reads); `expires`: Unix seconds. Raises
        InvalidRequest: a scope is unknown, tenant, name or adapter is too long, or no group can
        have such a name."""
        limits = limits or Limits()
        if unknown := scopes - set(SCOPES):
            raise InvalidRequest(
                f"there is no scope {sorted(unknown)[0]!r}: use {', '.join(SCOPES)}", field="scopes"
            )
        for what, value in (("tenant", tenant), ("name", name), ("adapter", adapter)):
            if len(value) > MAX_NAME_CHARS or not value.isprintable():
                raise InvalidRequest(
                    f"{what} may have up to {MAX_NAME_CHARS} printable characters", field=what
                )
        groups = {*(view.groups or ()), *(writes or ())}
        if wrong := sorted(group for group in groups if not is_group(group)):
            raise InvalidRequest(f"{wrong[0]!r} cannot be a group: {GROUP_RULE}", field="groups")
        if writes is not None and not view.may_give(SEPARATOR.join(writes)):
            raise InvalidRequest("a key writes for groups that it belongs to", field="writes")
        key, key_id, digest = new_key()
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
            "writes": None if writes is None else View(writes).name,
            **asdict(limits),
        }
        with self._database.write() as write:
            write.execute(keys.insert(), row)
        return key, self._get(key_id)

    def find(self, key: str) -> StoredKey | None:
        """Return the valid key with this text, None if there is none. Raises DatabaseUnavailable:
        it is not known any more which keys are valid."""
        if (parsed := _KEY.fullmatch(key)) is None:
            return None
        row = self._row(parsed[1])
        # Compare for an unknown id too, so that it takes as long as a wrong secret.
        expected = row[_SECRET] if row is not None else bytes(32)
        if not hmac.compare_digest(_digest(parsed[2]), expected) or row is None:
            return None
        found = _as_stored_key(row)
        return found if found.valid(time.time()) else None

    def all(self) -> list[StoredKey]:
        """Return all keys, oldest first, including revoked and expired ones."""
        return list(map(_as_stored_key, self._rows()))

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
        if (row := KeyStore._row(self, key_id)) is None:
            raise NotFound(f"there is no key {key_id!r}; `kvstitch keys list` shows them")
        return _as_stored_key(row)

    def _row(self, key_id: str) -> _Row | None:
        with self._database.read() as read:
            return _BY_ID.row(read, key_id=key_id)

    def _rows(self) -> list[_Row]:
        with self._database.read() as read:
            return _ALL.rows(read)


class KeyCache(KeyStore):
    """The keys of a shared database; looks them up in a copy that `follow` renews."""

    def __init__(self, where: ServiceDatabase) -> None:
        super().__init__(where)
        self._copy: dict[str, _Row] = {}
        self._read_at = float("-inf")

    def start(self) -> None:
        super().start()
        self.refresh()

    def refresh(self) -> None:
        """Read all keys. Blocks."""
        started = time.monotonic()
        self._copy = {row[0]: row for row in self._rows()}
        self._read_at = started

    async def follow(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            with contextlib.suppress(DatabaseUnavailable):
                await asyncio.to_thread(self.refresh)

    def any(self) -> bool:
        return bool(self._known())

    def _row(self, key_id: str) -> _Row | None:
        return self._known().get(key_id)

    def _known(self) -> dict[str, _Row]:
        if time.monotonic() - self._read_at > MAX_AGE_S:
            raise DatabaseUnavailable("the database of API keys does not answer", retry_after_s=2.0)
        return self._copy


# Every request asks for its key, so that these do not go through SQLAlchemy's execution.
_BY_ID = Prepared(select(keys).where(keys.c.key_id == bindparam("key_id")))
_ALL = Prepared(select(keys).order_by(keys.c.created, keys.c.key_id))
_ANY = Prepared(select(keys.c.key_id).limit(1))
_SECRET = list(keys.columns.keys()).index("secret_sha256")


def _as_stored_key(row: tuple[Any, ...]) -> StoredKey:
    fields = dict(zip(keys.columns.keys(), row, strict=True))
    del fields["secret_sha256"]
    limits = Limits(**{each.name: fields.pop(each.name) for each in dataclass_fields(Limits)})
    scopes, view = frozenset(fields.pop("scopes").split()), View.named(fields.pop("groups"))
    named = fields.pop("writes")
    writes = None if named is None else View.named(named).groups
    return StoredKey(**fields, scopes=scopes, limits=limits, view=view, writes=writes)
