"""Some coroutines at a time, and documents that finish during a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest

from kvstitch.service.errors import DiskFull, WorkerUnavailable
from kvstitch.service.gateway.documents.background_loop import BatchProgress, side_by_side


async def test_so_many_run_at_a_time_in_their_order() -> None:
    running, most, started = 0, 0, []

    async def work(number: int) -> None:
        nonlocal running, most
        started.append(number)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (5 - number))
        running -= 1

    await side_by_side([partial(work, number) for number in range(5)], 2)
    assert (started, most, running) == ([0, 1, 2, 3, 4], 2, 0)
    await side_by_side([], 2)


async def test_an_error_ends_the_others() -> None:
    cancelled = []

    async def fail() -> None:
        await asyncio.sleep(0.001)
        raise WorkerUnavailable("gone")

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with pytest.raises(WorkerUnavailable):
        await side_by_side([wait, fail, wait], 2)
    assert cancelled == [True]


async def test_what_finishes_during_a_transaction_shares_the_next() -> None:
    written: list[Sequence[int]] = []
    go_on = asyncio.Event()

    async def write(numbers: Sequence[int]) -> None:
        written.append(numbers)
        await go_on.wait()

    async with BatchProgress(write) as progress:
        for number in (1, 2, 3):
            progress.expect(number, 1)
        progress.chunk(1, "")
        await asyncio.sleep(0)
        progress.chunk(2, "")
        progress.chunk(3, "")
        go_on.set()
    assert written == [[1], [2, 3]]


async def test_a_full_disk_is_reported() -> None:
    async def write(numbers: Sequence[int]) -> None:
        raise DiskFull("full")

    with pytest.raises(DiskFull):
        async with BatchProgress(write) as progress:
            progress.expect(1, 0)
