"""Where the service is, when a call is repeated, and what sends, reads and waits.

A transport is on an event loop, or blocks; both have the same coroutines. Those of the blocking one
never wait for an event loop, so `finish` runs whatever is made of them to its end, in the thread
that asks, without one.
"""

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Self, TypeVar

import httpx

from kvstitch.client.calls import Call
from kvstitch.client.errors import (
    InvalidRequest,
    UnexpectedResponse,
    from_response,
    from_transport,
    retry_after,
)

URL_VARIABLE = "KVSTITCH_URL"
KEY_VARIABLE = "KVSTITCH_API_KEY"
DEFAULT_URL = "http://localhost:8000"
CONNECT_S = 5.0


@dataclass(frozen=True)
class Connection:
    """Settings of a client, those of `AsyncClient`; api_key: empty: none is sent."""

    base_url: str
    api_key: str
    timeout_s: float
    max_retries: int
    max_wait_s: float

    @classmethod
    def make(cls, base_url: str | None, api_key: str | None, **patience: Any) -> Self:
        """What is not given comes from KVSTITCH_URL and KVSTITCH_API_KEY. Raises InvalidRequest:
        the key has characters that no header can hold."""
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
        """Seconds until the next attempt, after an error whose body has been read. Raises it, a
        KvstitchError, where there is none."""
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
        """Seconds until the next attempt. Raises ConnectionFailed: there is none."""
        passing = isinstance(fault, httpx.TransportError) and not isinstance(
            fault, httpx.ReadTimeout | httpx.WriteTimeout | httpx.UnsupportedProtocol
        )
        pause_s: float = FIRST_PAUSE_S * 2**self._made
        if not (passing and self._call.repeatable and self._may_repeat()):
            raise from_transport(fault, self._connection.base_url) from fault
        return pause_s

    def result(self, response: httpx.Response) -> T:
        """What the call gives, from a response that is no error. Raises UnexpectedResponse:
        something else than kvstitch answered."""
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


class AsyncTransport:
    """Sends over httpx.AsyncClient."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._http = httpx.AsyncClient(**options)

    async def send(self, *what: Any, **content: Any) -> httpx.Response:
        """Send a request, of httpx's arguments; the response's body is not read yet."""
        return await self._http.send(self._http.build_request(*what, **content), stream=True)

    async def read(self, response: httpx.Response) -> None:
        await response.aread()

    def lines(self, response: httpx.Response) -> AsyncIterator[str]:
        return response.aiter_lines()

    async def leave(self, response: httpx.Response) -> None:
        await response.aclose()

    async def close(self) -> None:
        await self._http.aclose()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def run_blocking(self, work: Callable[[], T]) -> T:
        """Do what blocks, in a thread."""
        return await asyncio.to_thread(work)


class BlockingTransport(AsyncTransport):
    """Sends over httpx.Client; no coroutine of it waits for an event loop."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._client = httpx.Client(**options)

    async def send(self, *what: Any, **content: Any) -> httpx.Response:
        return self._client.send(self._client.build_request(*what, **content), stream=True)

    async def read(self, response: httpx.Response) -> None:
        response.read()

    async def lines(self, response: httpx.Response) -> AsyncIterator[str]:
        for line in response.iter_lines():
            yield line

    async def leave(self, response: httpx.Response) -> None:
        response.close()

    async def close(self) -> None:
        self._client.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def run_blocking(self, work: Callable[[], T]) -> T:
        return work()


def finish(work: Awaitable[T]) -> T:
    """Return the result of what was made of a BlockingTransport's coroutines."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("a coroutine waits for an event loop that there is not")
