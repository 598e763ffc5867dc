"""Who asks and until when, and whether the request is taken.

Limits how many requests are in flight, and how many prompt tokens wait for their prefill.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from kvstitch.service.errors import DeadlineExceeded, Overloaded, QuotaExceeded, WorkerUnavailable
from kvstitch.service.gateway.auth.access import Principal
from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.shared.tracing import Operation

T = TypeVar("T")


@dataclass(frozen=True)
class CallContext:
    """Who asks, and until when."""

    principal: Principal
    arrived: float
    deadline: float | None = None
    traceparent: str = ""
    operation: Operation = "chat"

    @property
    def ago_s(self) -> float:
        """Seconds since the request arrived."""
        return time.perf_counter() - self.arrived

    @property
    def left_s(self) -> float | None:
        """Seconds until the deadline, never negative."""
        return None if self.deadline is None else max(0.0, self.deadline - time.perf_counter())


async def before_deadline(work: Awaitable[T], call: CallContext) -> T:
    """Await `work` as long as the client waits."""
    try:
        async with asyncio.timeout(call.left_s):
            return await work
    except TimeoutError:
        raise DeadlineExceeded(
            "the deadline passed before the answer began: give more time"
        ) from None


MEAN_WEIGHT = 0.1  # of the newest answer in the running mean
MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0


class RequestSlot:
    """One request in flight; its prompt tokens count as waiting until the first answer token."""

    def __init__(self, limiter: "ConcurrencyLimiter", tokens: int, key_id: str) -> None:
        self._limiter = limiter
        self._key_id = key_id
        self._waiting_tokens = tokens
        self._open = True

    def prefilled(self) -> None:
        """Note the first answer token: the prompt no longer waits."""
        self._limiter.add_waiting_tokens(-self._waiting_tokens)
        self._waiting_tokens = 0

    def close(self, seconds: float | None = None) -> None:
        """Give the slot back. May be called again."""
        if self._open:
            self._open = False
            self.prefilled()
            self._limiter.release(seconds, self._key_id)


class ConcurrencyLimiter:
    """Refuses requests above its limits at once with 503, so that no client waits in vain."""

    def __init__(
        self,
        *,
        max_running: int,
        max_waiting: int,
        max_waiting_tokens: int,
        metrics: GatewayMetrics,
        max_per_key: int = 0,
    ) -> None:
        self._per_key = max_per_key
        self._of_key: Counter[str] = Counter()
        self._max_waiting = max_waiting
        self._max_waiting_tokens = max_waiting_tokens
        self._metrics = metrics
        self._mean_answer_s = 1.0
        self.in_flight = 0
        self.waiting_tokens = 0
        self.draining = False
        self.resize(max_running)
        metrics.waiting_tokens_limit.set(max_waiting_tokens)

    def resize(self, max_running: int) -> None:
        """Set how many sequences are decoded together, at least one, when workers come or go."""
        self._max_running = max(1, max_running)
        self._max_in_flight = self._max_running + self._max_waiting
        self._max_per_key = self._per_key or max(1, self._max_in_flight // 2)
        self._metrics.in_flight_limit.set(self._max_in_flight)

    def limit(self, max_waiting_tokens: int, max_per_key: int) -> None:
        """Set other limits; requests in flight stay."""
        self._max_waiting_tokens, self._per_key = max_waiting_tokens, max_per_key
        self._metrics.waiting_tokens_limit.set(max_waiting_tokens)
        self.resize(self._max_running)

    @property
    def retry_after_s(self) -> float:
        """About how many seconds until a slot is free."""
        rounds = self.in_flight / self._max_running
        return min(MAX_RETRY_S, max(MIN_RETRY_S, self._mean_answer_s * rounds))

    def acquire(self, tokens: int, key_id: str = "") -> RequestSlot:
        """Take a slot for a prompt of about `tokens`, sent with this key ("": without one)."""
        if self.draining:
            self._count_rejected("draining")
            raise WorkerUnavailable("the service is shutting down", retry_after_s=5.0)
        if self.in_flight >= self._max_in_flight:
            self._count_rejected("requests")
            raise Overloaded(
                "as many requests are under way as may be: try again later",
                retry_after_s=self.retry_after_s,
            )
        if self.waiting_tokens and self.waiting_tokens + tokens > self._max_waiting_tokens:
            self._count_rejected("tokens")
            raise Overloaded(
                "too many prompts are waiting: try again later", retry_after_s=self.retry_after_s
            )
        if key_id and self._of_key[key_id] >= self._max_per_key:
            raise QuotaExceeded(
                f"{self._of_key[key_id]} requests of this API key are under way, which is its "
                "limit: wait for their answers",
                retry_after_s=self.retry_after_s,
            )
        self._of_key[key_id] += 1
        self.in_flight += 1
        self._metrics.in_flight.set(self.in_flight)
        self.add_waiting_tokens(tokens)
        return RequestSlot(self, tokens, key_id)

    def add_waiting_tokens(self, tokens: int) -> None:
        """For slots: change the number of waiting prompt tokens by `tokens`."""
        self.waiting_tokens += tokens
        self._metrics.waiting_tokens.set(self.waiting_tokens)

    def release(self, seconds: float | None, key_id: str) -> None:
        """For slots: note that a request ended; `seconds` as in `RequestSlot.close`."""
        self.in_flight -= 1
        self._of_key[key_id] -= 1
        if not self._of_key[key_id]:
            del self._of_key[key_id]
        self._metrics.in_flight.set(self.in_flight)
        if seconds is not None:
            self._mean_answer_s += MEAN_WEIGHT * (seconds - self._mean_answer_s)

    def _count_rejected(self, reason: str) -> None:
        self._metrics.rejected.labels(reason).inc()
