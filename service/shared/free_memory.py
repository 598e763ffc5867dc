"""Memory that is free: how much, and giving back what was freed."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def available() -> int | None:
    """Bytes that programs can have on this machine and in this container; None if unknown.

    Copies of files, of which a machine keeps as many as fit, count as free.
    """
    found = []
    with suppress(OSError, KeyError):
        found.append(1024 * _numbers(PROC / "meminfo")["MemAvailable:"])
    with suppress(OSError, ValueError, KeyError):  # there is no such file, or it says "max"
        limit, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        found.append(max(limit - used + _numbers(CGROUP / "memory.stat")["inactive_file"], 0))
    return min(found, default=None)


def _numbers(file: Path) -> dict[str, int]:
    """The first number of each line, by the word before it."""
    lines = (line.split() for line in file.read_text(encoding="ascii").splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


def give_back() -> None:
    """Give back what this process has freed. The C library keeps what lies between pieces in use:
    after a text of some megabytes, hundreds. Libraries without `malloc_trim` keep it.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
