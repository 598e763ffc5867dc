"""Calls to one tier: through its circuit breaker, with results for exceptions, and counted.

    closed ── N failures in a row, or one timeout ──> open
    open ── cool-down over ──> half-open: one caller may try, the others are turned away
    half-open ── the try succeeds ──> closed;  it fails ──> open for another cool-down

A timeout opens the breaker at once, because each further try would cost another timeout. So a dead
tier costs its callers one timeout per cool-down, plus the calls that were already waiting when the
breaker opened.
"""

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar, cast

from kvstitch.encryption.keyring import EncryptionError
from kvstitch.kvstore.errors import (
    ChunkCorrupt,
    ChunkError,
    ChunkLocked,
    ChunkRefused,
    ChunkSpecError,
    TierError,
    TierFull,
    TierTimeout,
    TierUnavailable,
)

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
            return "half-open" if self._has_cooled_down() else "open"

    def allow(self) -> bool:
        """Return whether the caller may try. If so, it must report the result afterwards."""
        with self._lock:
            if self._opened_at is None:
                return True
            if self._probing or not self._has_cooled_down():
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

    def _has_cooled_down(self) -> bool:
        assert self._opened_at is not None
        return self._clock() - self._opened_at >= self._settings.cooldown_s


T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CallResult(Generic[T]):
    """What one call gave: a value, or a problem, or neither (the tier does not hold the key)."""

    value: T | None
    problem: str | None


class TierCaller:
    """The circuit breaker and the counters of one tier."""

    def __init__(self, name: str, breaker: BreakerSettings) -> None:
        self._name = name
        self._breaker = CircuitBreaker(breaker)
        self._lock = threading.Lock()
        self._ops: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @property
    def healthy(self) -> bool:
        """Whether the circuit breaker is closed."""
        return self._breaker.state == "closed"

    @property
    def open(self) -> bool:
        """Whether the circuit breaker turns calls away."""
        return self._breaker.state == "open"

    def call(
        self, op: str, work: Callable[[], T | None], *, at_home: bool = False
    ) -> CallResult[T]:
        """Do the work unless the breaker is open; every fault becomes a problem in the result."""
        if not at_home and not self._breaker.allow():
            return CallResult(None, "unavailable")
        started = time.perf_counter()
        value: T | None = None
        problem: str | None = None
        try:
            with nullcontext() if at_home else self._breaker.watching(_server_answered):
                value = work()
        except ChunkSpecError:
            raise
        except Exception as error:
            problem = _problem(error)
            _log.warning("%s %s: %s: %s", self._name, op, problem, error)
            if isinstance(error, TierError) and error.server is not None:
                value = cast("T | None", error.found)
        with self._lock:
            self._seconds[op] += time.perf_counter() - started
        return CallResult(value, problem)

    def ask(
        self, op: str, work: Callable[[], T | None], nbytes: int = 0, *, at_home: bool = False
    ) -> CallResult[T]:
        """Do the work like `call`, and count it: its problem, or ok with these bytes."""
        result = self.call(op, work, at_home=at_home)
        self.count(op, result.problem or "ok", nbytes if result.problem is None else 0)
        return result

    def count(self, op: str, outcome: str, nbytes: int = 0, times: int = 1) -> None:
        with self._lock:
            self._ops[op, outcome] += times
            self._bytes[op] += nbytes

    def count_found(self, op: str, result: CallResult[T], nbytes: int) -> CallResult[T]:
        """Count a read under its problem, or as a miss or a hit."""
        there = "miss" if result.value is None else "hit"
        self.count(op, result.problem or there, nbytes)
        return result

    def counted(self) -> tuple[dict[tuple[str, str], int], dict[str, int], dict[str, float]]:
        """Return the counters: calls by (op, outcome), bytes by op, seconds by op."""
        with self._lock:
            return dict(self._ops), dict(self._bytes), dict(self._seconds)


def _server_answered(error: Exception) -> bool:
    """Return whether the tier is well, or of its servers all but one, which has its own breaker."""
    if isinstance(error, TierError) and error.server is not None:
        return True
    return isinstance(error, ChunkError | EncryptionError | TierFull)


def _problem(error: Exception) -> str:
    match error:
        case ChunkCorrupt():
            return "corrupt"
        case ChunkRefused():
            return "refused"
        case ChunkLocked() | EncryptionError():
            return "locked"
        case TierFull():
            return "rejected"
        case TierTimeout() | TimeoutError():
            return "timeout"
        case TierUnavailable():
            return "unavailable"
        case _:
            return "error"
