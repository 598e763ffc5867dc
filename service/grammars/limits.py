"""What one grammar may take. The kernel enforces it on the grammar's own process."""

import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

CORES = len(os.sched_getaffinity(0))
QUICK_CPU_S, COMPILE_CPU_S = 0.12, 2.0
"""To compile. Gateways give the first to every grammar, and the second to those that need it, which
wait for one another. Of 300 schemas that programs have made none takes 0.05 s."""
MAX_QUICK, MAX_SLOW = min(8, max(2, CORES)), min(2, max(1, CORES // 4))
"""Grammars that a gateway compiles at the same time, of those."""
MAX_SLOW_WAITING = 8
"""Of one tenant, that need the second and wait for it."""
STEP_CPU_S = 1.0
"""To follow a token and find out what may come next."""
BURST_CPU_S, CPU_S_PER_TOKEN = 3.0, 0.02
"""In all: so much, and so much for every token of the answer."""
WALL_S = 90.0
"""A reply that takes longer is not waited for: the machine is too busy."""
MEMORY = 384 << 20
"""Bytes beyond the tokenizer, which all processes share."""
SLOW_S = 0.05
"""A thread that computes for longer in one go comes behind others from then on. To compile, it then
has the niceness below, with which a busy core gives it a fifth as much as others; in a worker it
gets only what all others leave."""
SLOW_NICE = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 7)

TOO_MUCH = (
    f"it takes more than {COMPILE_CPU_S:g} s or {MEMORY >> 20} MiB to compile, or {STEP_CPU_S:g} s "
    "for one token: send a simpler one (smaller numbers in multipleOf, maxItems and {n,m}, fewer "
    "alternatives that begin alike)"
)
TOO_BUSY = (
    f"the machine was too busy to compile or follow it in {WALL_S:g} s: try again later, or send a "
    "simpler one"
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


class Watch:
    """Puts a thread back if it computes for long in one go."""

    def __init__(self, put_back: Callable[[int], None]) -> None:
        self._put_back = put_back
        self._thread = 0
        signal.signal(signal.SIGVTALRM, lambda *_: None)
        self._read, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        threading.Thread(target=self._wait, name="watch", daemon=True).start()

    @contextmanager
    def over(self) -> Iterator[None]:
        """Watch what the calling thread does within."""
        self._thread = threading.get_native_id()
        signal.setitimer(signal.ITIMER_VIRTUAL, SLOW_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)

    def aside(self, work: Callable[[], T]) -> T:
        """Do this on a thread of its own, which is watched: one that was put back stays there."""

        def watched() -> T:
            with self.over():
                return work()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(watched).result()

    def _wait(self) -> None:
        while os.read(self._read, 1):
            self._put_back(self._thread)


def behind_others(thread: int) -> None:
    """For `Watch`: come behind all else on the machine."""
    os.setpriority(os.PRIO_PROCESS, thread, SLOW_NICE)  # of Linux: of this thread only


def last_of_all(thread: int) -> None:
    """For `Watch`: take only what all others leave."""
    os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
