"""Streamed answers, for blocking code and for coroutines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self

import httpx

from kvstitch.client.attempts import FAULTS
from kvstitch.client.errors import from_transport
from kvstitch.client.events import Event, EventReader
from kvstitch.client.results import Answer


class AnswerStream:
    """A streamed answer: iterate it once, then `result` is the whole answer.

    Leaving it early, by `close` or the end of a `with`, ends the answer in the service.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._reader = EventReader(response)

    @property
    def result(self) -> Answer:
        """The whole answer, once the last event has come.

        Raises:
            UnexpectedResponse: It has not.
        """
        return self._reader.result

    def __iter__(self) -> Iterator[Event]:
        response = self._reader.response
        try:
            for line in response.iter_lines():
                if (event := self._reader.event(line)) is not None:
                    yield event
        except FAULTS as fault:
            raise from_transport(fault, str(response.url)) from fault
        finally:
            self.close()
        self._reader.check_whole()

    def close(self) -> None:
        """Leave the stream; the service then ends the answer."""
        self._reader.response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncAnswerStream:
    """A streamed answer: iterate it once, then `result` is the whole answer.

    Leaving it early, by `close` or the end of an `async with`, ends the answer in the service.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._reader = EventReader(response)

    @property
    def result(self) -> Answer:
        """The whole answer, once the last event has come.

        Raises:
            UnexpectedResponse: It has not.
        """
        return self._reader.result

    async def __aiter__(self) -> AsyncIterator[Event]:
        response = self._reader.response
        try:
            async for line in response.aiter_lines():
                if (event := self._reader.event(line)) is not None:
                    yield event
        except FAULTS as fault:
            raise from_transport(fault, str(response.url)) from fault
        finally:
            await self.close()
        self._reader.check_whole()

    async def close(self) -> None:
        """Leave the stream; the service then ends the answer."""
        await self._reader.response.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
