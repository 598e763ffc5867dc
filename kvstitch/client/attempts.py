"""Decides how one call goes on after each attempt: repeated after a pause, or over.

A call is repeated if the service was too busy (429, 503 with Retry-After), because it then did
nothing, and if the connection failed and sending twice is the same as sending once. It is not
repeated after a timeout: the service may still be at work.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import httpx

from kvstitch.client.calls import Call
from kvstitch.client.connection import Connection
from kvstitch.client.errors import (
    UnexpectedResponse,
    from_response,
    from_transport,
    retry_after,
)

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
