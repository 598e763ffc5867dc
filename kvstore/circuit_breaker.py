"""A circuit breaker: after failures it turns callers away for a while.

    closed ── N failures in a row, or one timeout ──> open
    open ── cool-down over ──> half-open: one caller may try, the others are turned away
    half-open ── the try succeeds ──> closed;  it fails ──> open for another cool-down

A timeout opens the breaker at once, because each further try would cost another timeout. So a dead
tier costs its callers one timeout per cool-down, plus the calls that were already waiting when the
breaker opened.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from kvstore.errors import TierTimeout

State = Literal["closed", "open", "half-open"]


@dataclass(frozen=True)
class BreakerSettings:
    """When a breaker opens, and for how long."""

    failures: int = 3
    cooldown_s: float = 5.0


class CircuitBreaker:
    """Call `allow` before each operation and `succeeded` or `failed` after it."""

    def __init__(
        self, settings: BreakerSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._opened_at: float | None = None
        self._probing = False

    @property
    def state(self) -> State:
        with self._lock:
            if self._opened_at is None:
                return "closed"
            return "half-open" if self._cooled() else "open"

    def allow(self) -> bool:
        """Return whether the caller may try. If so, it must report the result afterwards."""
        with self._lock:
            if self._opened_at is None:
                return True
            if self._probing or not self._cooled():
                return False
            self._probing = True
            return True

    @contextmanager
    def watching(self, answered: Callable[[Exception], bool]) -> Iterator[None]:
        """Report how the block goes, after `allow`."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception) and answered(error):
                self.succeeded()
            else:
                self.failed(timeout=isinstance(error, TierTimeout | TimeoutError))
            raise
        self.succeeded()

    def succeeded(self) -> None:
        with self._lock:
            self._failures = 0
            self._opened_at = None
            self._probing = False

    def failed(self, *, timeout: bool = False) -> None:
        with self._lock:
            self._failures += 1
            if self._probing or timeout or self._failures >= self._settings.failures:
                self._opened_at = self._clock()
            self._probing = False

    def _cooled(self) -> bool:
        assert self._opened_at is not None
        return self._clock() - self._opened_at >= self._settings.cooldown_s
