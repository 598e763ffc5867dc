"""A loop that works off what is on disk and outlives every failure. Knows no work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from service.errors import Overloaded, WorkerUnavailable

logger = logging.getLogger(__name__)
PAUSE_S = 0.5  # after a failure, before the next attempt


class BackgroundLoop:
    """Runs `step` while it finds work; otherwise waits for `wake`, at most `look_again_s`."""

    def __init__(
        self, name: str, step: Callable[[], Awaitable[bool]], look_again_s: float | None = None
    ) -> None:
        self._name = name
        self._step = step
        self._look_again_s = look_again_s
        self._task: asyncio.Task[None] | None = None
        self.wake = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self.wake.clear()
            try:
                if not await self._step():
                    await self._wait()
            except (WorkerUnavailable, Overloaded) as error:
                logger.info("%s waits: %s", self._name, error)
                await asyncio.sleep(PAUSE_S)
            except Exception:
                logger.exception("%s failed unexpectedly; it is tried again", self._name)
                await asyncio.sleep(10 * PAUSE_S)

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self.wake.wait(), self._look_again_s)
        except TimeoutError:
            return
