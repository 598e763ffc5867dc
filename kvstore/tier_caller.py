"""Calls to one tier: circuit breaker, exceptions turned into outcomes, counting.

Knows no operation of a tier; those are :mod:`kvstore.fault_tolerant_tier`.
"""

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvstore.circuit_breaker import BreakerSettings, CircuitBreaker
from kvstore.errors import (
    ChunkCorrupt,
    ChunkRefused,
    ChunkSpecError,
    TierFull,
    TierTimeout,
    TierUnavailable,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)

# The tier answered, if only to say no: these say nothing against its health.
_ANSWERED = frozenset({"corrupt", "refused", "rejected"})


@dataclass(frozen=True)
class CallResult(Generic[T]):
    """What one call gave: a value, or None with the problem, or None and None (nothing there).

    A read of blocks may have both: the blocks that are sound, and the problem with the others.
    """

    value: T | None
    problem: str | None


class TierCaller:
    """The breaker and the counters of one tier."""

    def __init__(self, name: str, breaker: BreakerSettings) -> None:
        self._name = name
        self._breaker = CircuitBreaker(breaker)
        self._lock = threading.Lock()
        self._ops: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @property
    def healthy(self) -> bool:
        return self._breaker.state == "closed"

    @property
    def open(self) -> bool:
        """Whether calls are being turned away."""
        return self._breaker.state == "open"

    def call(self, op: str, work: Callable[[], T | None]) -> CallResult[T]:
        """Do the work unless the breaker is open; only the caller's own mistakes are raised.

        Raises:
            ChunkSpecError: from ``work``.
        """
        if not self._breaker.allow():
            return CallResult(None, "unavailable")
        started = time.perf_counter()
        value: T | None = None
        problem: str | None = None
        try:
            value = work()
        except ChunkSpecError:
            self._breaker.succeeded()
            raise
        except Exception as error:
            problem = _problem(error)
            _log.warning("%s %s: %s: %s", self._name, op, problem, error)
        except BaseException:
            self._breaker.failed()
            raise
        if problem is None or problem in _ANSWERED:
            self._breaker.succeeded()
        else:
            self._breaker.failed(timeout=problem == "timeout")
        with self._lock:
            self._seconds[op] += time.perf_counter() - started
        return CallResult(value, problem)

    def count(self, op: str, outcome: str, nbytes: int = 0, times: int = 1) -> None:
        with self._lock:
            self._ops[op, outcome] += times
            self._bytes[op] += nbytes

    def count_found(self, op: str, attempt: CallResult[T], nbytes: int) -> CallResult[T]:
        """Count a read as its problem, a miss or a hit."""
        there = "miss" if attempt.value is None else "hit"
        self.count(op, attempt.problem or there, nbytes)
        return attempt

    def counted(self) -> tuple[dict[tuple[str, str], int], dict[str, int], dict[str, float]]:
        """Operations by (op, outcome), bytes by op, seconds by op: a copy."""
        with self._lock:
            return dict(self._ops), dict(self._bytes), dict(self._seconds)


def _problem(error: Exception) -> str:
    match error:
        case ChunkCorrupt():
            return "corrupt"
        case ChunkRefused():
            return "refused"
        case TierFull():
            return "rejected"
        case TierTimeout() | TimeoutError():
            return "timeout"
        case TierUnavailable():
            return "unavailable"
        case _:
            return "error"
