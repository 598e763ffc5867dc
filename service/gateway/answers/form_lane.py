"""A lane of blocking work: so many at a time, of tenants in turns.

tenant a ── a1 a2 a3 ──┐
tenant b ── b1 ────────┼── a1 b1 a2 a3     the tenant with fewest under way is next
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from service.errors import QuotaExceeded

T = TypeVar("T")
RETRY_S = 5.0


class FormLane:
    """For one event loop. One tenant leaves a place to the others, where there is more than one."""

    def __init__(self, name: str, places: int, most_waiting: int | None = None) -> None:
        self._threads = ThreadPoolExecutor(places, name)
        self._places = places
        self._of_one = max(1, places - 1)
        self._most_waiting = most_waiting
        self._under_way: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # tenants in their turns

    async def run(self, tenant: str, work: Callable[[], T]) -> T:
        """Do a tenant's work on a thread; what it raises is raised here."""
        await self._take_place(tenant)
        try:
            doing: Future[T] = self._threads.submit(work)
        except BaseException:
            self._give_place(tenant)
            raise
        loop = asyncio.get_running_loop()
        # A work whose caller has gone away keeps its place until it ends.
        doing.add_done_callback(
            lambda _: loop.is_closed() or loop.call_soon_threadsafe(self._give_place, tenant)
        )
        return await asyncio.wrap_future(doing)

    def close(self) -> None:
        """Wait for what is under way, and leave out the rest."""
        self._threads.shutdown(cancel_futures=True)

    async def _take_place(self, tenant: str) -> None:
        if self._may_begin(tenant) and tenant not in self._waiting:
            self._under_way[tenant] += 1
            return
        queue = self._waiting.setdefault(tenant, deque())
        if self._most_waiting is not None and len(queue) >= self._most_waiting:
            raise QuotaExceeded(
                f"{len(queue)} grammars that take long to compile wait already: send simpler ones, "
                "or fewer at a time",
                retry_after_s=RETRY_S,
            )
        place = asyncio.get_running_loop().create_future()
        queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._give_place(tenant)
            elif place in queue:
                queue.remove(place)
                if not queue:
                    self._waiting.pop(tenant, None)
            raise

    def _may_begin(self, tenant: str) -> bool:
        return self._under_way.total() < self._places and self._under_way[tenant] < self._of_one

    def _give_place(self, tenant: str) -> None:
        self._under_way[tenant] -= 1
        if not self._under_way[tenant]:
            del self._under_way[tenant]
        while able := [each for each in self._waiting if self._may_begin(each)]:
            following = min(able, key=lambda each: self._under_way[each])
            queue = self._waiting.pop(following)
            place = queue.popleft()
            if queue:
                self._waiting[following] = queue  # behind the others
            if not place.cancelled():
                self._under_way[following] += 1
                place.set_result(None)
