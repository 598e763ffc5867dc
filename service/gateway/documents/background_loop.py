"""Loops that work through tasks stored on disk, steps that are made side by side, and what is left
of a batch."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Self

from kvstitch.service.errors import DatabaseUnavailable, DiskFull, Overloaded, WorkerUnavailable

logger = logging.getLogger(__name__)
RETRY_S = 0.5  # pause after an expected failure
RETRY_UNEXPECTED_S = 5.0
RETRY_FULL_S = 2.0  # pause while the disk is full, or the database away


def retry_after_s(error: Exception) -> float | None:
    """Return the pause after which a step that failed is made again; None: it did not wait for
    anything that comes back by itself."""
    if isinstance(error, WorkerUnavailable | Overloaded):
        return RETRY_S
    return RETRY_FULL_S if isinstance(error, DatabaseUnavailable | DiskFull) else None


class BackgroundLoop:
    """Makes a step again and again while it finds work; otherwise waits to be woken."""

    def __init__(
        self, name: str, step: Callable[[], Awaitable[bool]], poll_s: float | None = None
    ) -> None:
        self._name = name
        self._step = step
        self._poll_s = poll_s
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self._name)

    def wake(self) -> None:
        """Make a step soon: there may be work."""
        self._woken.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                if not await self._step():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._woken.wait(), self._poll_s)
            except Exception as error:
                pause_s = retry_after_s(error)
                if pause_s is None:
                    logger.exception("%s failed unexpectedly; it is tried again", self._name)
                else:
                    level = logging.INFO if pause_s == RETRY_S else logging.WARNING
                    logger.log(level, "%s waits: %s", self._name, error)
                await asyncio.sleep(RETRY_UNEXPECTED_S if pause_s is None else pause_s)


async def side_by_side(
    works: Sequence[Callable[[], Coroutine[None, None, None]]], most: int
) -> None:
    """Run these in their order, at most so many at a time; the first error cancels the others."""
    turns = asyncio.Semaphore(most)

    async def in_turn(work: Callable[[], Coroutine[None, None, None]]) -> None:
        await turns.acquire()
        await work()
        turns.release()  # not after an error: no other begins

    tasks = [asyncio.create_task(in_turn(work)) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class BatchProgress:
    """Of a batch of documents: how many chunks of each are left, and what failed."""

    def __init__(self, note_done: Callable[[Sequence[int]], Awaitable[None]]) -> None:
        self.numbers: set[int] = set()
        self.errors: dict[int, str] = {}
        self._left: Counter[int] = Counter()
        self._note_done = note_done
        self._done: list[int] = []
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writing is not None:
            await self._writing

    def expect(self, number: int, chunks: int) -> None:
        """Add a document with so many chunks to store."""
        self.numbers.add(number)
        self._left[number] = chunks
        if not chunks:
            self._add_done(number)

    def chunk(self, number: int, error: str) -> None:
        """Note that a chunk of a document is stored, or the error."""
        self._left[number] -= 1
        if error:
            self.errors[number] = f"its KV was not stored: {error}"
        if not self._left[number] and number not in self.errors:
            self._add_done(number)

    def _add_done(self, number: int) -> None:
        self._done.append(number)
        if self._writing is None or self._writing.done():
            if self._writing is not None:
                self._writing.result()
            self._writing = asyncio.create_task(self._write_done())

    async def _write_done(self) -> None:
        while self._done:
            numbers, self._done = self._done, []
            await self._note_done(numbers)
