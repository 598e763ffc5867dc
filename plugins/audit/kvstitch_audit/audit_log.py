"""The audit log in a database: a file of its own, or tables that gateways share.

Entries are appended one at a time over all processes, the command line's among them, because each
holds the hash of the one before. They are never changed; after their time they are deleted from
the oldest on, which is an entry, too. So is a start with other settings than the one before, and a
reload that changes some; no entry has a secret.
"""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from kvstitch.retriever.sql.expressions import Number, among, required, upsert
from kvstitch.retriever.sql.revisions import Schema
from kvstitch.service.gateway.service_database import ServiceDatabase, shared_database
from kvstitch.service.settings import Settings
from kvstitch.service.settings.fields import IS_SET, hidden
from kvstitch_audit import FILE
from kvstitch_audit.chain import RETENTION, Event, Head, sealed, written

_metadata = sa.MetaData()
audit_entries = sa.Table(
    "audit_entries", _metadata,
    *required(sa.Text, "tenant", primary_key=True),
    *required(Number, "number", primary_key=True, autoincrement=False),
    *required(sa.Text, "at", "action", "entry", "hash"),
)  # fmt: skip
audit_heads = sa.Table(
    "audit_heads", _metadata,
    *required(sa.Text, "tenant", primary_key=True),
    *required(Number, "number"),
    *required(sa.Text, "hash"),
)  # fmt: skip
AUDIT = Schema("audit", _metadata, "audit_1")


_LOCK = 0x6B76_0006  # number of PostgreSQL's advisory lock
_PAGE = 1000
SERVICE: Final = "service"


def now() -> str:
    """Return the time as entries have it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


class AuditLog:
    """Opened by start(). Thread-safe; every call blocks.

    Args:
        where: The database, or the path of a file.
    """

    def __init__(self, where: ServiceDatabase | Path) -> None:
        self._database = ServiceDatabase(where, [AUDIT]) if isinstance(where, Path) else where

    def start(self) -> None:
        """Open it, and create it if need be."""
        self._database.start()

    def close(self) -> None:
        self._database.close()

    def append(self, events: Sequence[Event]) -> None:
        """Append entries in this order, all or none."""
        with self._database.write(_LOCK) as write:
            _append(write, events)

    def heads(self) -> dict[str, Head]:
        """Return the end of each tenant's chain."""
        with self._database.read() as read:
            return _heads(read)

    def page(self, tenant: str, after: int, limit: int) -> list[dict[str, Any]]:
        """Return a tenant's entries after a number, oldest first."""
        return [entry for _, entry in self._numbered(tenant, after, limit)]

    def all(self, heads: Mapping[str, Head]) -> Iterator[Any]:
        """Yield the entries of chains up to these heads, tenant by tenant.

        What is no entry any more, because somebody has changed it, is yielded as it is.
        """
        for tenant, head in sorted(heads.items()):
            after = 0
            while page := self._numbered(tenant, after, _PAGE):
                yield from (entry for number, entry in page if number <= head.number)
                after = page[-1][0]

    def _numbered(self, tenant: str, after: int, limit: int) -> list[tuple[int, Any]]:
        table = audit_entries.c
        found = (
            sa.select(table.number, table.entry)
            .where(table.tenant == tenant, table.number > after)
            .order_by(table.number)
            .limit(limit)
        )
        with self._database.read() as read:
            return [(row.number, _read(row.entry)) for row in read.execute(found)]

    def last(self, tenant: str, action: str) -> dict[str, Any] | None:
        """Return a tenant's latest entry of this action."""
        table = audit_entries.c
        found = (
            sa.select(table.entry)
            .where(table.tenant == tenant, table.action == action)
            .order_by(table.number.desc())
            .limit(1)
        )
        with self._database.read() as read:
            text = read.scalars(found).first()
        return None if text is None else json.loads(text)

    def forget(self, before: str) -> int:
        """Delete entries that are older than a time; what was deleted becomes an entry."""
        table = audit_entries.c
        deleted = 0
        with self._database.write(_LOCK) as write:
            for tenant, head in _heads(write).items():
                kept = sa.select(sa.func.min(table.number)).where(
                    table.tenant == tenant, table.at >= before
                )
                through = (write.scalar(kept) or head.number + 1) - 1
                oldest = sa.select(table.hash).where(
                    table.tenant == tenant, table.number == through
                )
                if (last := write.scalar(oldest)) is None:  # those are gone already
                    continue
                details = {"through": through, "hash": last}
                _append(write, [Event(tenant, SERVICE, RETENTION, now(), details)])
                gone = audit_entries.delete().where(table.tenant == tenant, table.number <= through)
                deleted += write.execute(gone).rowcount
        return deleted


@contextmanager
def opened(settings: Any) -> Iterator[AuditLog | None]:
    """Yield the audit log alone, for the command line; None: no service has kept one."""
    file = settings.data_dir / FILE
    if not settings.database and not settings.audit and not file.is_file():
        yield None
        return
    url = settings.database
    log = AuditLog(shared_database(url, connections=1) if url else file)
    try:
        log.start()
        yield log if settings.audit or log.heads() else None
    finally:
        log.close()


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _append(write: sa.Connection, events: Sequence[Event]) -> None:
    tenants = {event.tenant for event in events}
    heads = _heads(write, tenants)
    rows = []
    for event in events:
        entry = sealed(event, heads.get(event.tenant, Head()))
        heads[event.tenant] = Head(entry["number"], entry["hash"])
        row = {name: entry[name] for name in ("tenant", "number", "at", "action", "hash")}
        rows.append({**row, "entry": written(entry)})
    write.execute(audit_entries.insert(), rows)
    upsert(
        write,
        audit_heads,
        [
            {"tenant": tenant, "number": head.number, "hash": head.hash}
            for tenant, head in heads.items()
        ],
    )


def _heads(connection: sa.Connection, tenants: Collection[str] | None = None) -> dict[str, Head]:
    """Return the heads of these tenants, or of all."""
    wanted = audit_heads.select()
    if tenants is not None:
        wanted = wanted.where(among(audit_heads.c.tenant, tenants))
    return {row.tenant: Head(row.number, row.hash) for row in connection.execute(wanted)}


CHANGED = "settings"  # the entry's action


def recorded(settings: Settings) -> dict[str, Any]:
    """Return the settings that are not as they are by default, as they are recorded."""
    found = {}
    secret = hidden(type(settings))
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if value != field.get_default(call_default_factory=True):
            found[name] = IS_SET if name in secret else _json(value)
    return found


def record_changes(log: AuditLog, settings: Settings) -> None:
    """Append an entry if a service starts with other settings than the last one did. Blocks."""
    before = log.last("", CHANGED)
    old = {} if before is None else before["details"]["settings"]
    new = recorded(settings)
    if before is not None and old == new:
        return
    changed = sorted(name for name in {**old, **new} if old.get(name) != new.get(name))
    log.append([change(new, changed)])


def change(settings: dict[str, Any], changed: Sequence[str], **more: Any) -> Event:
    """Return the entry of changed settings."""
    details = {"settings": settings, "changed": changed, **more}
    return Event("", SERVICE, CHANGED, now(), details)


def of_operator(action: str, tenant: str, details: Mapping[str, Any]) -> Event:
    """Return the entry of what somebody does by the command line."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return Event(tenant, f"operator:{user}", action, now(), details)


def _json(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | None) else str(value)
