"""Calls functions after a delay, all on one thread. Waits nearly always end early: calls are not
cancelled but stay in the list and do nothing when their time comes."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

NEVER = float("inf")


class Timers:
    """Delayed calls, for several threads. The thread starts with the first `after` and ends with
    `close`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._wakes_at = NEVER
        self._thread: threading.Thread | None = None
        self._closed = False

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` after so many seconds; it must be short and must not raise."""
        when = time.monotonic() + seconds
        with self._changed:
            heapq.heappush(self._waiting, (when, next(self._numbers), call))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)
                self._thread.start()
            elif when < self._wakes_at:
                self._changed.notify()

    def close(self) -> None:
        """End the thread; calls that are still waiting are dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closed:
                self._wakes_at = self._waiting[0][0] if self._waiting else NEVER
                left = self._wakes_at - time.monotonic()
                if left <= 0:
                    return heapq.heappop(self._waiting)[2]
                self._changed.wait(None if left == NEVER else left)
            return None
