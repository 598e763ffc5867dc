"""What one grammar may take. The kernel enforces it on the grammar's own process."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

QUICK_CPU_S, COMPILE_CPU_S = 0.25, 2.0
"""To compile. Gateways give the first to every grammar, and the second to those that need it, which
wait for one another."""
MAX_QUICK, MAX_SLOW = 8, 2
"""Grammars that a gateway compiles at the same time, of those."""
STEP_CPU_S = 1.0
"""To follow a token and find out what may come next."""
BURST_CPU_S, CPU_S_PER_TOKEN = 3.0, 0.02
"""In all: so much, and so much for every token of the answer."""
WALL_S = 30.0
"""A reply that takes longer will not come, however busy the machine is."""
MEMORY = 384 << 20
"""Bytes beyond the tokenizer, which all processes share."""
SLOW_NICE = 10
SLOW_S = 0.05
"""A process that computes for longer in one go comes behind others on the machine from then on."""

TOO_MUCH = (
    f"it takes more than {COMPILE_CPU_S:g} s or {MEMORY >> 20} MiB to compile, or {STEP_CPU_S:g} s "
    "for one token: send a simpler one (smaller numbers in multipleOf, maxItems and {n,m}, fewer "
    "alternatives that begin alike)"
)


def confine() -> None:
    """Give this process the limits of a grammar."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def allow_cpu(seconds: float) -> None:
    """Let this process compute for so long from now on; then the kernel ends it."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def come_last() -> None:
    """Let this process compute only less than others do."""
    os.setpriority(os.PRIO_PROCESS, os.getpid(), SLOW_NICE)


@contextmanager
def coming_last_if_slow() -> Iterator[None]:
    """`come_last` as soon as what is done within, without Python's lock, takes long."""
    timer = threading.Timer(SLOW_S, come_last)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
