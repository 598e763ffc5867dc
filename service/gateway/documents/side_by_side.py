"""Runs some coroutines at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence


async def side_by_side(
    works: Sequence[Callable[[], Coroutine[None, None, None]]], most: int
) -> None:
    """Run these in their order, at most so many at a time; the first error cancels the others."""
    tasks: list[asyncio.Task[None]] = []
    running: set[asyncio.Task[None]] = set()
    try:
        for work in works:
            tasks.append(asyncio.create_task(work()))
            running.add(tasks[-1])
            while len(running) >= most or (running and len(tasks) == len(works)):
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
