"""Counts by kind, by name and by place in the code."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
HERE = str(Path(__file__).parent)

KINDS = {
    "kernel": "operations of torch that start a kernel",
    "triton": "launches of Triton kernels",
    "to device": "copies to the device",
    "from device": "copies from the device",
    "graph": "replays of recorded operations",
    "wait": "the host waits for the device",
    "stream": "events, waits of streams, and changes of the current stream",
}
DEVICE_OPERATIONS = ("kernel", "triton", "to device", "from device", "graph")


class Tally:
    """Counts while it is on.

    Attributes:
        names: by kind and name of what was asked for.
        places: by kind and by the line of this project that asked, with the line that called it.
    """

    def __init__(self) -> None:
        self.on = False
        self.names: Counter[tuple[str, str]] = Counter()
        self.places: Counter[tuple[str, str]] = Counter()

    def start(self) -> None:
        """Count from zero."""
        self.names.clear()
        self.places.clear()
        self.on = True

    def book(self, kind: str, name: str, times: int = 1) -> None:
        """Count something of one of the `KINDS`."""
        if self.on:
            self.names[kind, name] += times
            self.places[kind, _place()] += times

    def by_kind(self) -> dict[str, int]:
        """Return the count of every kind, and of all that the device executes."""
        kinds = dict.fromkeys(KINDS, 0)
        for (kind, _), times in self.names.items():
            kinds[kind] += times
        return {"device operations": sum(kinds[kind] for kind in DEVICE_OPERATIONS), **kinds}


def _place() -> str:
    frame, found = sys._getframe(2), list[str]()
    while frame is not None and len(found) < 2:
        file = frame.f_code.co_filename
        if file.startswith(ROOT) and not file.startswith(HERE) and "site-packages" not in file:
            found.append(f"{file[len(ROOT) + 1 :]}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(found) or "elsewhere"
