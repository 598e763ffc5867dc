"""How many requests may be under way, and how many prompt tokens may wait. Knows no request."""

from __future__ import annotations

from service.errors import Overloaded, WorkerUnavailable
from service.gateway.prometheus import GatewayMetrics


class RequestSlot:
    """One admitted request; its tokens count until its first answer token."""

    def __init__(self, owner: ConcurrencyLimiter, tokens: int) -> None:
        self._owner = owner
        self._tokens = tokens
        self._open = True

    def prefilled(self) -> None:
        """The first answer token is there: the prompt no longer waits."""
        self._owner.count_waiting(-self._tokens)
        self._tokens = 0

    def close(self, seconds: float | None = None) -> None:
        """The request ended, after `seconds` if it was answered. May be called again."""
        if self._open:
            self._open = False
            self.prefilled()
            self._owner.leave(seconds)


class ConcurrencyLimiter:
    """Bounded, so that a flood is answered with 503 at once and nobody waits for ever."""

    def __init__(
        self,
        *,
        max_running: int,
        max_waiting: int,
        max_waiting_tokens: int,
        metrics: GatewayMetrics,
    ) -> None:
        self._max_running = max_running
        self._max_in_flight = max_running + max_waiting
        self._max_waiting_tokens = max_waiting_tokens
        self._metrics = metrics
        self._seconds = 1.0  # running mean of an answer
        self.in_flight = 0
        self.waiting_tokens = 0
        self.draining = False
        metrics.in_flight_limit.set(self._max_in_flight)
        metrics.waiting_tokens_limit.set(max_waiting_tokens)

    @property
    def retry_after_s(self) -> float:
        """About when a place will be free."""
        rounds = self.in_flight / self._max_running
        return min(60.0, max(1.0, self._seconds * rounds))

    def enter(self, tokens: int) -> RequestSlot:
        """A place for a prompt of about `tokens`. Raises Overloaded, or WorkerUnavailable while
        draining. A prompt that is alone is admitted however long it is."""
        if self.draining:
            self._reject("draining")
            raise WorkerUnavailable("the service is shutting down", retry_after_s=5.0)
        if self.in_flight >= self._max_in_flight:
            self._reject("requests")
            raise Overloaded(
                f"{self.in_flight} requests are under way, which is the limit: try again later",
                retry_after_s=self.retry_after_s,
            )
        if self.waiting_tokens and self.waiting_tokens + tokens > self._max_waiting_tokens:
            self._reject("tokens")
            raise Overloaded(
                f"prompts of {self.waiting_tokens} tokens are waiting: try again later",
                retry_after_s=self.retry_after_s,
            )
        self.in_flight += 1
        self._metrics.in_flight.set(self.in_flight)
        self.count_waiting(tokens)
        return RequestSlot(self, tokens)

    def count_waiting(self, tokens: int) -> None:
        """So many tokens of a prompt wait; below 0: wait no longer."""
        self.waiting_tokens += tokens
        self._metrics.waiting_tokens.set(self.waiting_tokens)

    def leave(self, seconds: float | None) -> None:
        self.in_flight -= 1
        self._metrics.in_flight.set(self.in_flight)
        if seconds is not None:
            self._seconds += 0.1 * (seconds - self._seconds)

    def _reject(self, reason: str) -> None:
        self._metrics.rejected.labels(reason).inc()
