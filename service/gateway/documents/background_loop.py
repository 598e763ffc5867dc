"""A loop that works through tasks stored on disk, and continues after every failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from service.errors import DatabaseUnavailable, DiskFull, Overloaded, WorkerUnavailable

logger = logging.getLogger(__name__)
RETRY_S = 0.5  # pause after an expected failure
RETRY_UNEXPECTED_S = 5.0
RETRY_FULL_S = 2.0  # pause while the disk is full, or the database away


class BackgroundLoop:
    """Calls a step again and again while it finds work; otherwise waits to be woken."""

    def __init__(
        self, name: str, step: Callable[[], Awaitable[bool]], poll_s: float | None = None
    ) -> None:
        """Not started yet.

        Args:
            name: For the log.
            step: Does some work; returns False if there was none.
            poll_s: Longest wait between two steps; None: until `wake`.
        """
        self._name = name
        self._step = step
        self._poll_s = poll_s
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self._name)

    def wake(self) -> None:
        """There may be work: take a step soon."""
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
                    await self._wait()
            except (WorkerUnavailable, Overloaded) as error:
                logger.info("%s waits: %s", self._name, error)
                await asyncio.sleep(RETRY_S)
            except (DatabaseUnavailable, DiskFull) as error:
                logger.warning("%s waits: %s", self._name, error)
                await asyncio.sleep(RETRY_FULL_S)
            except Exception:
                logger.exception("%s failed unexpectedly; it is tried again", self._name)
                await asyncio.sleep(RETRY_UNEXPECTED_S)

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._woken.wait(), self._poll_s)
        except TimeoutError:
            return
