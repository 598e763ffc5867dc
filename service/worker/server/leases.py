"""What a worker that several gateways share remembers of them: leases, their keys, and its number.

A lease is how long it may keep what it holds without hearing from those who may delete it.

    Hello, Ping ──> lease of the gateway's domain ──over──> everything that only this worker holds
                          │                                 is dropped
                          └──> a note beside the SSD tier: the next process goes on with it

A domain is one gateway, or all that share a database; any of them renews the lease. A lease counts
from the moment when the worker sent the counters that a `Ping` answers, by a clock that goes on
while the machine is suspended.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kvstitch.encryption.keyring import DataKey, Keyring
from kvstitch.service.shared.resources import uptime

log = logging.getLogger("kvstitch.worker")

NOTE = ".lease"  # the SSD tier leaves hidden files alone
NOTES_PER_LEASE = 20
UNREADABLE = "unreadable"
NUMBERS = ".seats"  # a hidden folder with a file for each number
MAX_WORKERS = 64


class Leases:
    """The leases of one worker, for one thread. Reads the note of an earlier process at once."""

    def __init__(
        self,
        kv_dir: Path | None,
        clock: Callable[[], float] = uptime,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._note = None if kv_dir is None else kv_dir / NOTE
        self._clock = clock
        self._wall = wall
        self._until: dict[str, float] = {}
        self._over = False
        self._noted: dict[str, float] = {}  # as `_until`, when the note was written
        self._note_every_s = 0.0
        for domain, until in self._read().items():
            # One that is over is found by `over`, before anything is served.
            self._until[domain] = self._noted[domain] = clock() + until - wall()

    def begin(self, domain: str, lease_s: float) -> None:
        """Begin the lease of a domain, one of whose gateways says Hello; that renews none."""
        now = self._clock()
        if self._until.get(domain, 0.0) <= now:
            self._extend(domain, now + lease_s, lease_s)

    def renew(self, domain: str, lease_s: float, clock: float) -> None:
        """Renew the lease of a domain, one of whose gateways has seen what was sent at `clock`."""
        self._extend(domain, min(clock, self._clock()) + lease_s, lease_s)

    def over(self) -> bool:
        """Return whether a lease has ended since the last call: then everything must be dropped."""
        now = self._clock()
        for domain in [domain for domain, until in self._until.items() if until <= now]:
            log.warning("nothing was heard for a lease of gateways that may delete documents")
            del self._until[domain]
            self._over = True
        over, self._over = self._over, False
        return over

    def again(self) -> None:
        """Make `over` say so once more, because not everything could be dropped."""
        self._over = True

    def _extend(self, domain: str, until: float, lease_s: float) -> None:
        known = self._until.get(domain)
        if known is not None and known <= self._clock():
            self._over = True  # it ended before it was renewed
        self._until[domain] = max(until, known or until)
        self._note_every_s = lease_s / NOTES_PER_LEASE

    def note(self) -> None:
        """Write the note if leases have moved far enough, or are over and all is dropped."""
        moved = self._until.keys() != self._noted.keys() or any(
            until - self._noted[domain] > self._note_every_s
            for domain, until in self._until.items()
        )
        if self._note is None or self._over or not moved:
            return
        ended = self._noted.keys() - self._until.keys()
        ahead = self._wall() - self._clock()
        others = {domain: until for domain, until in self._read().items() if domain not in ended}
        for domain, until in self._until.items():
            others[domain] = max(until + ahead, others.get(domain, 0.0))
        temporary = self._note.with_name(f"{NOTE}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(others), encoding="utf-8")
            os.replace(temporary, self._note)
            self._noted = dict(self._until)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._note, error)

    def _read(self) -> dict[str, float]:
        """Return the ends of leases by the wall clock."""
        try:
            text = "{}" if self._note is None else self._note.read_text(encoding="utf-8")
            return {str(domain): float(until) for domain, until in json.loads(text).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("%s cannot be read: %s", self._note, error)
            return {UNREADABLE: 0.0}  # over


def take_number(kv_dir: Path) -> int:
    """Take the lowest free number among the workers that share an SSD tier's folder."""
    folder = kv_dir / NUMBERS
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(MAX_WORKERS):
        descriptor = os.open(folder / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return number  # the descriptor stays open
        except BlockingIOError:
            os.close(descriptor)
    raise OSError(f"{MAX_WORKERS} workers use {kv_dir} already: give this one another folder")


class GatewayKeys:
    """The keys that gateways have sent, as one ring. Gateways read them from their database at
    different moments: a key is in the ring as soon as one sends it, and leaves it for good as
    soon as a gateway that had sent it stops sending it, whatever the others still send."""

    def __init__(self, ring: Keyring) -> None:
        self._ring = ring
        self._sent: dict[bytes, list[DataKey]] = {}  # by gateway
        self._silent: dict[bytes, list[DataKey]] = {}
        self._deleted: set[bytes] = set()

    def take(self, gateway: bytes, keys: Sequence[DataKey], *, alone: bool) -> bool:
        """Take over what a gateway sends: all keys that it has; return whether the ring changed."""
        before = self._sent.get(gateway) or self._silent.pop(gateway, [])
        self._deleted |= {key.id for key in before} - {key.id for key in keys}
        if alone:
            self._sent.clear()
        self._sent[gateway] = list(keys)
        return self._join()

    def silent(self, gateway: bytes) -> bool:
        """Count on a gateway no more, while there are others; return whether the ring changed."""
        if len(self._sent) > 1 and gateway in self._sent:
            self._silent[gateway] = self._sent.pop(gateway)
        return self._join()

    def heard(self, gateway: bytes) -> bool:
        """Count on a gateway again that was silent; return whether the ring changed."""
        if gateway not in self._silent:
            return False
        self._sent[gateway] = self._silent.pop(gateway)
        return self._join()

    def _join(self) -> bool:
        if not self._sent:
            return False
        return self._ring.replace(_joined(self._sent.values(), self._deleted))


def _joined(sent: Iterable[Sequence[DataKey]], deleted: set[bytes]) -> list[DataKey]:
    by_id = {key.id: key for keys in sent for key in keys if key.id not in deleted}
    return list(by_id.values())
