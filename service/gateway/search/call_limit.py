"""How many calls that keep a model busy are taken at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from service.errors import Overloaded
from service.gateway.answers.concurrency_limiter import ConcurrencyLimiter

# One call may keep the embedder busy for a minute: more of them would only wait, and take the
# places of answers meanwhile.
MAX_CALLS = 16


class CallLimit:
    """Takes a place among all requests in flight, as long as few are of this kind."""

    def __init__(self, limiter: ConcurrencyLimiter, what: str) -> None:
        """`what`: the kind of calls, for messages."""
        self._limiter = limiter
        self._what = what
        self._calls = 0

    @contextmanager
    def place(self, key_id: str) -> Iterator[None]:
        """Hold a place.

        Raises:
            Overloaded, QuotaExceeded: There is none.
            WorkerUnavailable: The service is shutting down.
        """
        if self._calls >= MAX_CALLS:
            raise Overloaded(
                f"{self._calls} calls of {self._what} are under way, which is the limit: try again "
                "later",
                retry_after_s=self._limiter.retry_after_s,
            )
        slot = self._limiter.acquire(0, key_id)
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            slot.close()
