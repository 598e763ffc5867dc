"""Where the service is, how patient a client is, and what is next in a call, a wait or a list.

Nothing here waits or sends; the clients do.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import httpx

from kvstitch.client.calls import PAGE_ITEMS, Call, Page
from kvstitch.client.errors import (
    InvalidRequest,
    UnexpectedResponse,
    WaitedTooLong,
    from_response,
    from_transport,
    retry_after,
)
from kvstitch.client.results import Job

URL_VARIABLE = "KVSTITCH_URL"
KEY_VARIABLE = "KVSTITCH_API_KEY"
DEFAULT_URL = "http://localhost:8000"
CONNECT_S = 5.0


@dataclass(frozen=True)
class Connection:
    """Settings of a client.

    Attributes:
        base_url: Of the service.
        api_key: Sent as a bearer token; empty: none.
        timeout_s: Longest silence of the service within a call.
        max_retries: How often a call is repeated.
        max_wait_s: A call is not repeated if the service asks to wait longer.
    """

    base_url: str
    api_key: str
    timeout_s: float
    max_retries: int
    max_wait_s: float

    @classmethod
    def make(cls, base_url: str | None, api_key: str | None, **patience: Any) -> Connection:
        """What is not given comes from KVSTITCH_URL and KVSTITCH_API_KEY.

        Raises:
            InvalidRequest: The key has characters that no header can hold.
        """
        url = base_url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        key = (api_key or os.environ.get(KEY_VARIABLE, "")).strip()
        if not (key.isascii() and key.isprintable()):
            raise InvalidRequest(
                "api_key has characters that no key has: copy it again", field="api_key"
            )
        return cls(url.rstrip("/"), key, **patience)

    def for_httpx(self) -> dict[str, Any]:
        """Arguments of httpx.Client and httpx.AsyncClient."""
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        timeout = httpx.Timeout(self.timeout_s, connect=min(CONNECT_S, self.timeout_s))
        return {
            "base_url": self.base_url,
            "headers": headers,
            "timeout": timeout,
            "verify": _trust(),
        }


@cache
def _trust() -> ssl.SSLContext:
    """Whom to trust. Reading this takes longer than all else that a client does at its start."""
    return httpx.create_ssl_context()


T = TypeVar("T")
FIRST_PAUSE_S = 0.5
# What httpx raises where no response can come.
FAULTS = (httpx.TransportError, httpx.InvalidURL)
Fault = httpx.TransportError | httpx.InvalidURL


class Attempts(Generic[T]):
    """The attempts of one call. Told of each, it says what is next; it waits and sends nothing."""

    def __init__(self, call: Call[T], connection: Connection) -> None:
        self._call = call
        self._connection = connection
        self._made = 0

    def pause_after(self, response: httpx.Response) -> float:
        """Seconds until the next attempt, after an error whose body has been read.

        Raises:
            KvstitchError: There is none: it is the call's error.
        """
        wait_s = retry_after(response)
        if (
            response.status_code in (429, 503)
            and wait_s is not None
            and wait_s <= self._connection.max_wait_s
            and self._may_repeat()
        ):
            return wait_s
        raise from_response(response)

    def pause_after_fault(self, fault: Fault) -> float:
        """Seconds until the next attempt.

        Raises:
            ConnectionFailed: There is none.
        """
        passing = isinstance(fault, httpx.TransportError) and not isinstance(
            fault, httpx.ReadTimeout | httpx.WriteTimeout | httpx.UnsupportedProtocol
        )
        pause_s: float = FIRST_PAUSE_S * 2**self._made
        if not (passing and self._call.repeatable and self._may_repeat()):
            raise from_transport(fault, self._connection.base_url) from fault
        return pause_s

    def result(self, response: httpx.Response) -> T:
        """What the call gives, from a response that is no error.

        Raises:
            UnexpectedResponse: Something else than kvstitch answered.
        """
        try:
            return self._call.read(response.json())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UnexpectedResponse(
                f"{response.url} answered, but not as kvstitch does: is the address right?",
                status=response.status_code,
            ) from error

    def _may_repeat(self) -> bool:
        self._made += 1
        return self._made <= self._connection.max_retries


FIRST_POLL_S = 0.1
LONGEST_POLL_S = 2.0
OnProgress = Callable[[Job], None]
PageCall = Callable[[str | None, int], Call[Page[T]]]


class Waiting:
    """Waiting for one job: pauses grow from a tenth of a second to two."""

    def __init__(self, on_progress: OnProgress | None, timeout_s: float | None) -> None:
        """Begin.

        Args:
            on_progress: Called with the job, first and whenever something changed.
            timeout_s: Longest time to wait; None: until the job ends.
        """
        self._on_progress = on_progress
        self._timeout_s = timeout_s
        self._give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        self._pause_s = FIRST_POLL_S
        self._seen: Job | None = None

    def pause_before_next(self, job: Job) -> float | None:
        """Seconds until the next look; None: the job has ended.

        Raises:
            WaitedTooLong: The time is up.
        """
        if self._on_progress is not None and job != self._seen:
            self._on_progress(job)
        self._seen = job
        if job.ended:
            return None
        pause_s, self._pause_s = self._pause_s, min(LONGEST_POLL_S, 1.5 * self._pause_s)
        if self._give_up_at is not None and time.monotonic() + pause_s > self._give_up_at:
            raise WaitedTooLong(
                f"job {job.job_id} is {job.state} after {self._timeout_s:g} s, and goes on: "
                f"{job.progress.done} of {job.progress.total} documents are done"
            )
        return pause_s


class Pages(Generic[T]):
    """A list that comes in pages."""

    def __init__(self, call: PageCall[T], limit: int | None) -> None:
        """Begin.

        Args:
            call: Makes the call for the page after a cursor, with at most so many items.
            limit: Most items; None: all.
        """
        self._call = call
        self._left = limit
        self._cursor: str | None = None
        self._over = False

    def next_call(self) -> Call[Page[T]] | None:
        """The call for the next page; None: there is none."""
        if self._over or self._left == 0:
            return None
        return self._call(
            self._cursor, PAGE_ITEMS if self._left is None else min(PAGE_ITEMS, self._left)
        )

    def items(self, page: Page[T]) -> list[T]:
        """The items of a page that has come."""
        found, self._cursor = page
        self._over = self._cursor is None
        if self._left is not None:
            self._left -= len(found)
        return found
