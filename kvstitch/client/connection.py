"""Where the service is, when a call is repeated, and what sends, reads and waits.

A transport is on an event loop, or blocks; both have the same coroutines. Those of the blocking one
never wait for an event loop, so `finish` runs whatever is made of them to its end, in the thread
that asks, without one.
"""

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from typing import Any, Self, TypeVar

import httpx

from kvstitch.client.calls import Call
from kvstitch.client.errors import (
    SHOWN_CHARS,
    InvalidRequest,
    UnexpectedResponse,
    from_event,
    from_response,
    from_transport,
    retry_after,
)
from kvstitch.client.events import Done, Event, LineReader, Sources, Token, read
from kvstitch.records.answers import Answer, Citation

URL_VARIABLE = "KVSTITCH_URL"
KEY_VARIABLE = "KVSTITCH_API_KEY"
DEFAULT_URL = "http://localhost:8000"
CONNECT_S = 5.0
FIRST_PAUSE_S = 0.5
# What httpx raises where no response can come.
FAULTS = (httpx.TransportError, httpx.InvalidURL)
T = TypeVar("T")


class Connection:
    """Sends calls to a service, and repeats them as AsyncClient says."""

    def __init__(
        self,
        transport: "type[AsyncTransport]",
        base_url: str | None,
        api_key: str | None,
        *,
        timeout_s: float,
        max_retries: int,
        max_wait_s: float,
    ) -> None:
        """What is not given comes from KVSTITCH_URL and KVSTITCH_API_KEY. Raises InvalidRequest:
        the key has characters that no header can hold."""
        key = (api_key or os.environ.get(KEY_VARIABLE, "")).strip()
        if not (key.isascii() and key.isprintable()):
            raise InvalidRequest(
                "api_key has characters that no key has: copy it again", field="api_key"
            )
        url = base_url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
        self._base_url = url.rstrip("/")
        self._max_retries = max_retries
        self._max_wait_s = max_wait_s
        self.transport = transport(
            base_url=self._base_url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
            verify=_trust(),
        )

    async def send(self, call: Call[T]) -> T:
        """What the call gives. Raises UnexpectedResponse: something else than kvstitch answered."""
        response = await self.open(call)
        try:
            await self.transport.read(response)
        except FAULTS as fault:
            raise from_transport(fault, self._base_url) from fault
        finally:
            await self.transport.leave(response)
        try:
            return call.read(response.json())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UnexpectedResponse(
                f"{response.url} answered, but not as kvstitch does: is the address right?",
                status=response.status_code,
            ) from error

    async def open(self, call: Call[T]) -> httpx.Response:
        """The response that counts, before its body is read; an error is raised."""
        repeated = 0
        while True:
            may_repeat = repeated < self._max_retries
            try:
                response = await self.transport.send(
                    call.method, call.path, headers=dict(call.headers), **call.content
                )
                if response.is_success:
                    return response
                await self.transport.read(response)
                wait_s = retry_after(response)
                if (
                    response.status_code not in (429, 503)
                    or wait_s is None
                    or wait_s > self._max_wait_s
                    or not may_repeat
                ):
                    raise from_response(response)
                pause_s = wait_s
            except FAULTS as fault:
                passing = isinstance(fault, httpx.TransportError) and not isinstance(
                    fault, httpx.ReadTimeout | httpx.WriteTimeout | httpx.UnsupportedProtocol
                )
                if not (may_repeat and passing and call.repeatable):
                    raise from_transport(fault, self._base_url) from fault
                pause_s = FIRST_PAUSE_S * 2**repeated
            repeated += 1
            await self.transport.sleep(pause_s)


@cache
def _trust() -> ssl.SSLContext:
    """Whom to trust. Reading this takes longer than all else that a client does at its start."""
    return httpx.create_ssl_context()


class AsyncAnswerStream:
    """A streamed answer: iterate it once, then `result` is the whole answer.

    Leaving it early, by `close` or the end of an `async with`, ends the answer in the service.
    """

    def __init__(self, response: httpx.Response, transport: "AsyncTransport") -> None:
        self._response = response
        self._transport = transport
        self._answer: Answer | None = None

    @property
    def result(self) -> Answer:
        """The whole answer once the last event has come, before it UnexpectedResponse."""
        if self._answer is None:
            raise UnexpectedResponse("the stream has no result: it was not read to its end")
        return self._answer

    async def __aiter__(self) -> AsyncIterator[Event]:
        reader, url = LineReader(), self._response.url
        line = ""
        try:
            async for line in self._transport.lines(self._response):
                found = reader.feed(line)
                if found is not None and (event := self._event(*found)) is not None:
                    yield event
        except FAULTS as fault:
            raise from_transport(fault, str(url)) from fault
        except (ValueError, LookupError, TypeError) as error:
            raise UnexpectedResponse(
                f"{url} streams, but not as kvstitch does: {line[:SHOWN_CHARS]}"
            ) from error
        finally:
            await self.close()
        if self._answer is None:
            raise UnexpectedResponse("the stream broke off before the answer was whole")

    def _event(self, name: str, data: Any) -> Event | None:
        """Return the event; None: it is of a kind that is not known here."""
        match name:
            case "sources":
                return Sources([read(Citation, one) for one in data["citations"]], data)
            case "token":
                return Token(data["text"], data.get("logprobs"), data)
            case "done":
                self._answer = read(Answer, data)
                return Done(self._answer)
            case "error":
                raise from_event(data, self._response)
        return None

    async def close(self) -> None:
        """Leave the stream; the service then ends the answer."""
        await self._transport.leave(self._response)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncTransport:
    """Sends over httpx.AsyncClient."""

    def __init__(self, **options: Any) -> None:
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

    def __init__(self, **options: Any) -> None:
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
