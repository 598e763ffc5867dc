"""Seconds of work that a worker has, known between its reports too.

    backlog = what it reported, less the time since │ + what it was sent and has not counted yet

So a burst of requests that arrives between two reports does not go to one worker.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable


class Backlog:
    """Of one worker."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """The worker is new: it has nothing to do, and counts from 0."""
        self._reported_s = 0.0
        self._at = self._clock()
        self._sent = 0
        self._uncounted: deque[tuple[int, float]] = deque()

    def sent(self, seconds: float) -> None:
        """A request that is expected to take so long is sent to the worker."""
        self._sent += 1
        self._uncounted.append((self._sent, seconds))

    def reported(self, seconds: float, received: int) -> None:
        """The worker reports its backlog, in which the first `received` requests count."""
        self._reported_s, self._at = seconds, self._clock()
        while self._uncounted and self._uncounted[0][0] <= received:
            self._uncounted.popleft()

    @property
    def seconds(self) -> float:
        """The backlog now."""
        left = max(0.0, self._reported_s - (self._clock() - self._at))
        return left + sum(seconds for _, seconds in self._uncounted)
