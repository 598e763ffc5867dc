"""Reads how much memory is left on this machine, or in the container that we run in."""

from __future__ import annotations

from pathlib import Path

_LIMIT = Path("/sys/fs/cgroup/memory.max")
_USED = Path("/sys/fs/cgroup/memory.current")


def available_bytes() -> int | None:
    """Bytes; None if the system does not tell."""
    found = [n for n in (_of_machine(), _of_container()) if n is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    fields = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((1024 * int(field[1]) for field in fields), None)


def _of_container() -> int | None:
    try:
        return int(_LIMIT.read_text()) - int(_USED.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None
