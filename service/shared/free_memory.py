"""Memory that is free: how much, and giving back what is not in use."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from contextlib import suppress
from pathlib import Path

# Less than a twentieth of a core for five seconds is quiet, and work that took half a second in all
# may have left something. Sooner, the next request would often ask for the same pages again.
LOOK_EVERY_S, QUIET, WORTH_S = 5.0, 0.05, 0.5
HEAPS, M_ARENA_MAX = 2, -8  # the second is from malloc.h
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


def share_heaps() -> None:
    """Have all threads allocate from two heaps. To be called before there are others.

    The GNU C library gives each thread a heap of its own, up to eight a core; what one has freed
    lies between what it keeps, and no other thread uses it: beside hostile files a hundred
    megabytes of the gateway, whose threads hardly ever allocate at the same time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, HEAPS)


def look_after() -> None:
    """Have this process keep little of what it has freed. To be called once it has started.

    All that there is now, which is modules for the most part, is left out of later collections of
    garbage: one then takes milliseconds instead of a quarter of a second, and Python makes one when
    there are a quarter more objects than it would look at, so objects that hold one another are
    found soon. And whenever the process has little to do, it gives back what work has taken. Not
    for tests, whose garbage would stay.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # so that what was frozen no longer counts
    threading.Thread(target=_give_back_when_quiet, name="free memory", daemon=True).start()


def _give_back_when_quiet() -> None:
    given = taken = time.process_time()
    while True:
        time.sleep(LOOK_EVERY_S)
        before, taken = taken, time.process_time()
        if taken - before < QUIET * LOOK_EVERY_S and before - given > WORTH_S:
            give_back()
            given = taken = time.process_time()


def give_back() -> None:
    """Collect objects that hold one another, and give back what this process has freed.

    The C library keeps what lies between pieces in use: after a text of some megabytes, hundreds.
    Libraries without `malloc_trim` keep it.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
