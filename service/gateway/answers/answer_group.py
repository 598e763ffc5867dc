"""Several answers that are made at the same time, as one stream of numbered events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from kvstitch.records.answers import Answer
from service.gateway.answers.answer_stream import AnswerEvent, AnswerStream


class NumberedEvent(NamedTuple):
    """An event of the answer with this number, from 0."""

    number: int
    event: AnswerEvent


@dataclass(frozen=True)
class AnswerGroup:
    """Answers that begin, and are given up, together."""

    answers: list[AnswerStream] = field(default_factory=list)

    async def events(self) -> AsyncGenerator[NumberedEvent, None]:
        """The events of all answers as they come.

        Raises:
            KvstitchError: One of them failed; the others are given up.
        """
        if len(self.answers) == 1:
            async with aclosing(self.answers[0].events()) as events:
                async for event in events:
                    yield NumberedEvent(0, event)
            return
        # One event at most waits, so that a slow client slows the answers down.
        coming: asyncio.Queue[NumberedEvent | BaseException | None] = asyncio.Queue(1)

        async def forward(number: int, answer: AnswerStream) -> None:
            try:
                async with aclosing(answer.events()) as events:
                    async for event in events:
                        await coming.put(NumberedEvent(number, event))
                await coming.put(None)
            except Exception as error:
                await coming.put(error)

        tasks = [asyncio.create_task(forward(n, each)) for n, each in enumerate(self.answers)]
        try:
            left = len(tasks)
            while left:
                item = await coming.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    left -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def collect(self) -> list[Answer]:
        """Return the whole answers. Raises as `events`."""
        if len(self.answers) == 1:
            return [await self.answers[0].collect()]
        tasks = [asyncio.create_task(answer.collect()) for answer in self.answers]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.aclose()

    async def aclose(self) -> None:
        """Release everything; answers that have not ended are aborted."""
        for answer in self.answers:
            await answer.aclose()
