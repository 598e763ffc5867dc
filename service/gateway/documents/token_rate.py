"""How fast KV is stored at the moment, for the time that jobs still take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 60.0  # what counts as recent
MIN_S = 0.5  # less is not measured: chunks that were stored already are answered at once


class TokenRate:
    """Tokens per second of the last minute in which there was something to compute.

    Args:
        clock: seconds of a clock that only goes forward.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._added: deque[tuple[float, float]] = deque()  # (when, tokens), the first one the start
        self._known: float | None = None  # until the present run has been measured

    def begin(self) -> None:
        """There is something to compute; does nothing if there was before."""
        if not self._added:
            self._added.append((self._clock(), 0.0))

    def add(self, tokens: float) -> None:
        """So many tokens' KV was stored."""
        now = self._clock()
        self._added.append((now, tokens))
        while len(self._added) > 2 and now - self._added[1][0] > WINDOW_S:
            self._added.popleft()

    def end(self) -> None:
        """There is nothing to compute: the time until the next beginning does not count."""
        self._known = self.per_s
        self._added.clear()

    @property
    def per_s(self) -> float | None:
        """Tokens per second; None if nothing was ever stored."""
        if len(self._added) < 2:
            return self._known
        seconds = self._clock() - self._added[0][0]
        tokens = sum(tokens for _, tokens in list(self._added)[1:])
        return tokens / seconds if seconds >= MIN_S and tokens else self._known

    def seconds_for(self, tokens: float) -> float | None:
        """How long so many tokens will take; None if that is not known."""
        rate = self.per_s
        return tokens / rate if rate else None
