"""AsyncClient behind the face of Client, so that one test asks both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import Any

from kvstitch.client import AsyncClient
from kvstitch.client.connection import AsyncAnswerStream


class Blocking:
    """Runs whatever an AsyncClient gives on a loop of its own."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self._client = AsyncClient(*args, **more)
        self._loop = asyncio.new_event_loop()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **more: Any) -> Any:
            return self._done(method(*args, **more))

        return call

    def _done(self, given: Any) -> Any:
        if inspect.isawaitable(given):
            given = self._loop.run_until_complete(_awaited(given))
        if isinstance(given, AsyncAnswerStream):
            return _Stream(given, self._loop)
        if isinstance(given, AsyncIterator):
            return _items(given, self._loop)
        return given

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())
        self._loop.close()


class _Stream:
    def __init__(self, stream: AsyncAnswerStream, loop: asyncio.AbstractEventLoop) -> None:
        self._stream = stream
        self._loop = loop

    @property
    def result(self) -> Any:
        return self._stream.result

    def __iter__(self) -> Iterator[Any]:
        return _items(aiter(self._stream), self._loop)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.run_until_complete(self._stream.close())


async def _awaited(given: Any) -> Any:
    return await given


def _items(given: Any, loop: asyncio.AbstractEventLoop) -> Iterator[Any]:
    try:
        while True:
            try:
                yield loop.run_until_complete(_awaited(anext(given)))
            except StopAsyncIteration:
                return
    finally:
        loop.run_until_complete(given.aclose())
