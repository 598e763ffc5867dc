"""Limits of calls that bring texts and keep a model busy: how many calls, texts and characters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from service.errors import InvalidRequest, Overloaded
from service.gateway.admission import ConcurrencyLimiter
from service.settings import Settings

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


def check_texts(texts: Sequence[str], field: str, settings: Settings) -> None:
    """Raise InvalidRequest if there are too many texts, or one is empty, or all are too long."""
    if len(texts) > settings.max_texts:
        raise InvalidRequest(
            f"{field} has {len(texts)} texts, the limit is {settings.max_texts}: send them in "
            "several calls",
            field=field,
        )
    chars = sum(map(len, texts))
    if chars > settings.max_texts_chars:
        raise InvalidRequest(
            f"{field} has {chars} characters, the limit is {settings.max_texts_chars}: send it in "
            "several calls",
            field=field,
        )
    for number, text in enumerate(texts):
        if not text:
            where = f"{field}[{number}]"
            raise InvalidRequest(f"{where} is empty: send a text, or leave it out", field=where)
