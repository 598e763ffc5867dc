"""How long a shared worker may keep what it holds, without hearing from those who may delete it.

    Hello, Ping ──> lease of the gateway's domain ──over──> everything that only this worker holds
                          │                                 is dropped
                          └──> a note beside the SSD tier, for the next process there

A domain is the place where deletions are noted: one gateway, or all that share a database, of which
any renews the lease. A lease counts from the moment when the worker sent the counters that a `Ping`
answers, by a clock that goes on while the machine is suspended. So whoever hears nothing of the
worker knows when it will have dropped everything.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("kvstitch.worker")

NOTE = ".lease"  # the SSD tier leaves hidden files alone
NOTES_PER_LEASE = 20


def uptime() -> float:
    """Seconds since this machine started, also those for which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leases:
    """For one thread.

    Args:
        kv_dir: of the SSD tier; None: there is none.
    """

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
        self._noted = float("-inf")
        self._note_every_s = 0.0

    def begin(self, domain: str, lease_s: float) -> None:
        """A gateway of a domain says Hello. That renews no lease, but begins one."""
        now = self._clock()
        if self._until.get(domain, 0.0) <= now:
            self._extend(domain, now + lease_s, lease_s)

    def renew(self, domain: str, lease_s: float, clock: float) -> None:
        """A gateway of a domain is there, and has seen what this worker sent at `clock`."""
        self._extend(domain, min(clock, self._clock()) + lease_s, lease_s)

    def over(self) -> bool:
        """Whether a lease has ended since the last call. Also writes the note when it is due."""
        now = self._clock()
        for domain in [domain for domain, until in self._until.items() if until <= now]:
            log.warning("nothing was heard for a lease of gateways that may delete documents")
            del self._until[domain]
            self._over = True
        over, self._over = self._over, False
        self._write(now)
        return over

    def emptied(self) -> None:
        """Nothing is left beside the note that could have been deleted."""
        self._noted = float("-inf")
        if self._note is not None and not self._until:
            self._note.unlink(missing_ok=True)

    def _extend(self, domain: str, until: float, lease_s: float) -> None:
        known = self._until.get(domain)
        if known is not None and known <= self._clock():
            self._over = True  # it ended before it was renewed
        self._until[domain] = max(until, known or until)
        self._note_every_s = lease_s / NOTES_PER_LEASE

    def _write(self, now: float) -> None:
        if self._note is None or not self._until:
            return
        left_s = min(self._until.values()) - now
        until = self._wall() + left_s
        if until - self._noted < self._note_every_s:
            return
        temporary = self._note.with_name(f"{NOTE}.{os.getpid()}")
        try:
            temporary.write_text(str(until), encoding="ascii")
            os.replace(temporary, self._note)
            self._noted = until
        except OSError as error:
            log.warning("%s cannot be written: %s", self._note, error)


def is_over(kv_dir: Path, wall: Callable[[], float] = time.time) -> bool:
    """Whether what an earlier process left in a folder may hold what was deleted since.

    A folder without a note was one gateway's own, which has deleted there what had to be.
    """
    note = kv_dir / NOTE
    try:
        return float(note.read_text(encoding="ascii")) <= wall()
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
