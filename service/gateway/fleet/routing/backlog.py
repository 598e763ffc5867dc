"""Seconds of work that a worker has, known between its reports too.

    backlog = what it reported, less the time since │ + what it was sent and has not counted yet

So a burst of requests that arrives between two reports does not go to one worker.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable


class Backlog:
    """Of one worker.

    Attributes:
        idle_at: when it will have done what it reported and was sent, if it began with the first.
        uncounted_s: seconds of what it was sent and has not counted yet: time takes nothing of it.
    """

    __slots__ = ("_clock", "_sent", "_uncounted", "idle_at", "uncounted_s")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """The worker is new: it has nothing to do, and counts from 0."""
        self._sent = 0
        self._uncounted: deque[tuple[int, float]] = deque()
        self.uncounted_s = 0.0
        self.idle_at = self._clock()

    def sent(self, seconds: float) -> None:
        """A request that is expected to take so long is sent to the worker."""
        self._sent += 1
        self._uncounted.append((self._sent, seconds))
        self.uncounted_s += seconds
        self.idle_at += seconds

    def reported(self, seconds: float, received: int) -> None:
        """The worker reports its backlog, in which the first `received` requests count."""
        while self._uncounted and self._uncounted[0][0] <= received:
            self._uncounted.popleft()
        self.uncounted_s = sum(uncounted for _, uncounted in self._uncounted)
        self.idle_at = self._clock() + seconds + self.uncounted_s

    @property
    def seconds(self) -> float:
        """The backlog now."""
        return max(self.uncounted_s, self.idle_at - self._clock())
