"""What this process takes of the machine: memory, cores, and what torch's libraries read of both.

OpenMP: threads that spin without end take the cores from those that work. Threads that sleep at
once are woken at every operation: two threads then prefill a quarter slower. So they spin for about
0.2 ms, which costs nothing measurable where cores are contended (ten times as long costs up to
half).

oneDNN makes a program for every shape of a product and keeps 1,024 of them, torch's layer above it
as many again for each thread: in bfloat16 half a megabyte each, hundreds of megabytes with prompts
and batches of ever new lengths. A program is made in 0.3 ms; among 32 all layers of a model find
theirs, and so do questions, whose embedder pads them to few lengths.
"""

import contextlib
import ctypes
import gc
import os
import threading
import time
from pathlib import Path

TORCH_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "3000",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32",
    "LRU_CACHE_CAPACITY": "4",  # of ideep, the layer above
}
# Less than a twentieth of a core for five seconds is quiet, and work that took half a second in all
# may have left something. Sooner, the next request would often ask for the same pages again.
LOOK_EVERY_S, QUIET, WORTH_S = 5.0, 0.05, 0.5
HEAPS, M_ARENA_MAX = 2, -8  # the second is from malloc.h
PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
# Answers come first. Niceness makes the rest give way without stopping: in SCHED_IDLE documents
# would get a third of a per cent of a core that answers keep busy. It counts within a session where
# sessions are scheduled as groups (autogroup), so gateway, worker and parsers stay in one.
NICE = 12  # a busy core gives such a thread a fifteenth of what it gives another
# A thirtieth, for what takes long: threads of an answer wait for one another, so what one loses,
# all lose, and several long files at a time would take half of them.
LONG_NICE = 15


def prepare_torch() -> None:
    """Set the environment of this process, where it says nothing else; before torch is imported."""
    for name, value in TORCH_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def behind_answers() -> None:
    """Put the calling thread, and those that it starts, behind what answers."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def behind_all(pid: int) -> None:
    """Put a process of one thread, which is ours and takes long, further back."""
    with contextlib.suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, LONG_NICE)


def uptime() -> float:
    """Return the seconds since this machine started, also those for which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def free_memory() -> int | None:
    """Bytes that programs can have on this machine and in this container; None if unknown.

    Copies of files, of which a machine keeps as many as fit, count as free.
    """
    found = []
    with contextlib.suppress(OSError, KeyError):
        found.append(1024 * _numbers(PROC / "meminfo")["MemAvailable:"])
    # There may be no such file, or it says "max".
    with contextlib.suppress(OSError, ValueError, KeyError):
        limit, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        found.append(max(limit - used + _numbers(CGROUP / "memory.stat")["inactive_file"], 0))
    return min(found, default=None)


def _numbers(file: Path) -> dict[str, int]:
    """The first number of each line, by the word before it."""
    lines = (line.split() for line in file.read_text(encoding="ascii").splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


def share_heaps() -> None:
    """Have all threads allocate from two heaps. To be called before there are others."""
    # Else glibc gives each thread its own, up to eight a core, and what one has freed no other
    # uses: a hundred megabytes of a gateway beside hostile files.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, HEAPS)


def look_after_memory() -> None:
    """Have this process give back what work has taken, whenever it has little to do. To be called
    once it has started, and not by tests, whose garbage would stay."""
    # What there is now, modules for the most part, is left out of later collections: one then takes
    # milliseconds instead of a quarter of a second, and comes sooner.
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
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
