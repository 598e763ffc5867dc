"""What sends, reads and waits: on an event loop, or blocking.

Both have the same coroutines. Those of the blocking one never wait for an event loop, so `finish`
runs whatever is made of them to its end, in the thread that asks, without one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import httpx

T = TypeVar("T")


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

    async def unhurried(self, work: Callable[[], T]) -> T:
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

    async def unhurried(self, work: Callable[[], T]) -> T:
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
