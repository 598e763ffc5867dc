"""Tenants take turns, and one of them never has all places."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from kvstitch.service.errors import QuotaExceeded
from kvstitch.service.gateway.answers.forms import FormLane


class Works:
    """Works that begin at once on their threads, and end when they are told to."""

    def __init__(self, lane: FormLane) -> None:
        self.lane = lane
        self.began: list[str] = []
        self.tasks: dict[str, asyncio.Task[str]] = {}
        self._may_end: dict[str, threading.Event] = {}

    async def send(self, *names: str) -> None:
        """Of the tenant that their first letter names."""
        for name in names:
            self._may_end[name] = threading.Event()
            work = partial(self._do, name)
            self.tasks[name] = asyncio.create_task(self.lane.run(name[0], work))
            await asyncio.sleep(0)

    def _do(self, name: str) -> str:
        self.began.append(name)
        self._may_end[name].wait()
        return name

    async def end(self, name: str) -> None:
        self._may_end[name].set()
        assert await self.tasks[name] == name

    async def begun(self, *names: str) -> None:
        """Wait until these have begun, and no others."""
        while len(self.began) < len(names):
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0)
        assert sorted(self.began) == sorted(names)

    def end_all(self) -> None:
        for event in self._may_end.values():
            event.set()


@asynccontextmanager
async def works(places: int, most_waiting: int | None = None) -> AsyncIterator[Works]:
    lane = FormLane("lane", places, most_waiting)
    made = Works(lane)
    try:
        yield made
    finally:
        made.end_all()
        await asyncio.gather(*made.tasks.values(), return_exceptions=True)
        await asyncio.to_thread(lane.close)


async def test_a_tenant_leaves_a_place_to_others() -> None:
    async with works(3) as lane:
        await lane.send("a1", "a2", "a3", "a4")
        await lane.begun("a1", "a2")
        await lane.send("b1")
        await lane.begun("a1", "a2", "b1")
        await lane.end("b1")
        await lane.begun("a1", "a2", "b1")
        await lane.end("a1")
        await lane.begun("a1", "a2", "b1", "a3")


async def test_tenants_take_turns_where_there_is_one_place() -> None:
    async with works(1) as lane:
        names = ["a1", "a2", "a3", "b1", "c1", "b2"]
        await lane.send(*names)
        order = ["a1", "a2", "b1", "c1", "a3", "b2"]
        for number, name in enumerate(order, 1):
            await lane.begun(*order[:number])
            await lane.end(name)


async def test_of_one_tenant_only_so_many_wait() -> None:
    async with works(1, most_waiting=2) as lane:
        await lane.send("a1", "a2", "a3", "a4", "b1")
        with pytest.raises(QuotaExceeded, match="2 grammars that take long") as refused:
            await lane.tasks["a4"]
        assert refused.value.retry_after_s
        await lane.end("a1")
        await lane.end("a2")
        await lane.end("b1")


async def test_who_goes_away_while_it_waits_keeps_nobody_waiting() -> None:
    async with works(1) as lane:
        await lane.send("a1", "a2", "b1")
        lane.tasks["a2"].cancel()
        await asyncio.gather(lane.tasks["a2"], return_exceptions=True)
        await lane.end("a1")
        await lane.begun("a1", "b1")
        await lane.end("b1")


async def test_who_goes_away_while_it_works_keeps_its_place_until_the_end() -> None:
    async with works(1) as lane:
        await lane.send("a1", "b1")
        await lane.begun("a1")
        lane.tasks["a1"].cancel()
        await asyncio.gather(lane.tasks["a1"], return_exceptions=True)
        await lane.begun("a1")
        lane.end_all()
        assert await lane.tasks["b1"] == "b1"


async def test_what_a_work_raises_is_raised_and_its_place_given_back() -> None:
    async with works(1) as lane:
        with pytest.raises(ZeroDivisionError):
            await lane.lane.run("a", lambda: 1 // 0)
        assert await lane.lane.run("a", lambda: 1) == 1
