"""Which shared workers may hold something that a deletion has to reach, also after a restart.

    joined ── listed: it must answer ── left ── lease over: it has dropped what only it held
                                          └──── back at its address: it must answer

A worker that hears nothing of a gateway's deletions for a lease drops what only it holds. So one
that is no longer listed, and may be dead or only out of reach, counts as done a lease after it was
spoken to last. Addresses are on disk before they are spoken to; those of an earlier process count
from the start of this one.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

logger = logging.getLogger(__name__)

FILE = "workers.json"
# Clocks of two machines do not run exactly alike, and a worker looks at its own now and then.
MARGIN = 1.05
MARGIN_S = 2.0


def uptime() -> float:
    """Seconds, also those for which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class KnownWorkers:
    """The shared workers that one gateway knows. Reads its file at once."""

    def __init__(self, folder: Path, lease_s: float, clock: Callable[[], float] = uptime) -> None:
        self._path = folder / FILE
        self._wait_s = lease_s * MARGIN + MARGIN_S
        self._clock = clock
        self._listed: set[str] = set()
        self._until = dict.fromkeys(self._read(), clock() + self._wait_s)

    def joined(self, addresses: Iterable[str]) -> None:
        """Note that these addresses are listed, before messages are sent to them."""
        for address in addresses:
            self._listed.add(address)
            self._until.pop(address, None)
        self._write()

    def left(self, address: str, *, gone: bool) -> None:
        """Note that an address is not listed any more."""
        self._listed.discard(address)
        if not gone:
            self._until[address] = self._clock() + self._wait_s
        self._write()

    def absent(self) -> str | None:
        """Return why deletions must wait for a worker that is not listed; None if they need not."""
        now = self._clock()
        if over := [address for address, until in self._until.items() if until <= now]:
            for address in over:
                del self._until[address]
            self._write()
        if not self._until:
            return None
        address, until = min(self._until.items(), key=lambda item: item[1])
        return (
            f"the worker at {address} is not listed any more and may still hold deleted text for "
            f"{until - now:.0f} s"
        )

    def _read(self) -> list[str]:
        try:
            return [str(each) for each in json.loads(self._path.read_text(encoding="utf-8"))]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError) as error:
            logger.error("%s cannot be read, and is begun anew: %s", self._path, error)
            return []

    def _write(self) -> None:
        text = json.dumps(sorted({*self._listed, *self._until}))
        temporary = self._path.with_suffix(".new")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)
