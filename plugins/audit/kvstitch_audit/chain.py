"""Entries of the audit log, and how a chain of them is verified.

    entry 1 ── hash ──► entry 2 (previous) ── hash ──► entry 3 …… head

Every tenant has a chain of its own, numbered from 1. The hash of an entry is over all of it: its
tenant, its number and the hash of the one before, too. So a changed, missing, added or moved entry
does not fit; where entries were forgotten after their time, an entry says up to which and with
which hash. What was cut off at the end is seen by the head, which is kept apart.

It knows no database and no files.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

GENESIS: Final = "0" * 64  # what comes before the first entry
RETENTION: Final = "retention"  # action of the entry that says what was forgotten


@dataclass(frozen=True)
class Event:
    """What happened; it becomes an entry when it is appended.

    Attributes:
        tenant: Whose chain it goes to.
        actor: Who did it: the id of a key, `sub:` and a subject, `operator:` and a user, `service`.
        action: What was done, e.g. "ask" or "delete".
        details: What it was done to. Never a secret.
        at: When, ISO 8601.
        route: Method and pattern of the path; "": it was no request.
        status: Of the response; None: it was no request.
        request_id: By which logs name it.
    """

    tenant: str
    actor: str
    action: str
    at: str
    details: Mapping[str, Any] = field(default_factory=dict)
    route: str = ""
    status: int | None = None
    request_id: str = ""


@dataclass(frozen=True)
class Head:
    """The end of a chain: how many entries were ever in it, and the hash of the last one."""

    number: int = 0
    hash: str = GENESIS


def sealed(event: Event, head: Head) -> dict[str, Any]:
    """Return the entry for an event that comes after `head`."""
    entry = {**asdict(event), "number": head.number + 1, "previous": head.hash}
    return {**entry, "hash": entry_hash(entry)}


def entry_hash(entry: Mapping[str, Any]) -> str:
    """Return the SHA-256 of an entry, in hex, its `hash` left out."""
    content = {name: value for name, value in entry.items() if name != "hash"}
    return hashlib.sha256(written(content).encode("ascii")).hexdigest()


def written(entry: Mapping[str, Any]) -> str:
    """Return the one way in which an entry is written: ASCII, names sorted."""
    return json.dumps(entry, sort_keys=True, separators=(",", ":"))


def verify(entries: Iterable[Any], heads: Mapping[str, Head]) -> list[str]:
    """Return what is wrong with the chains, nothing if they are whole."""
    faults: list[str] = []
    chains: dict[str, _Reader] = defaultdict(_Reader)
    for position, entry in enumerate(entries, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("tenant"), str):
            faults.append(f"entry {position} of the file is none of the audit log's")
            continue
        chains[entry["tenant"]].take(entry)
    for tenant in {**heads, **chains}:
        named = f"tenant {tenant!r}: "
        found = chains[tenant].end(heads.get(tenant))
        faults += [named + fault for fault in found]
    return faults


class _Reader:
    """Follows one chain."""

    def __init__(self) -> None:
        self._faults: list[str] = []
        self._last: Head | None = None
        self._before = Head()  # what the first entry follows
        self._forgotten = Head()  # what the latest entry about it says

    def take(self, entry: Mapping[str, Any]) -> None:
        number, previous = entry.get("number"), entry.get("previous")
        if not isinstance(number, int) or not isinstance(previous, str):
            self._faults.append("an entry has no number or no hash of the one before")
            return
        if entry.get("hash") != (found := entry_hash(entry)):
            self._faults.append(f"entry {number} was changed: its hash is not that of its content")
        if self._last is None:
            self._before = Head(number - 1, previous)
        elif number != self._last.number + 1:
            self._faults.append(
                f"entry {number} comes after entry {self._last.number}: "
                "entries are missing, or were moved"
            )
        elif previous != self._last.hash:
            self._faults.append(f"entry {number} does not follow entry {self._last.number}")
        if entry.get("action") == RETENTION and isinstance(details := entry.get("details"), dict):
            through, last = details.get("through"), details.get("hash")
            if isinstance(through, int) and isinstance(last, str):
                self._forgotten = Head(through, last)
        self._last = Head(number, found)

    def end(self, head: Head | None) -> list[str]:
        faults = list(self._faults)
        if self._last is None:
            self._last = Head()
        elif self._before != self._forgotten:
            faults.append(
                f"the first entry is number {self._before.number + 1}, and nothing says that those "
                "before it were forgotten after their time"
            )
        if head is None:
            faults.append("it is not known where it ends: give the head that was noted")
        elif head != self._last:
            faults.append(
                f"it ends with entry {self._last.number} ({self._last.hash[:12]}…), and should end "
                f"with entry {head.number} ({head.hash[:12]}…)"
            )
        return faults
