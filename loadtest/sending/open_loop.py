"""The open loop: every request is sent at its time, whether or not earlier ones were answered.

Latency counts from the time a request was meant to be sent. A generator that waits for answers, or
counts from the actual time of sending, leaves out exactly the requests that a slow server delays
(coordinated omission). A generator that is too slow itself would measure itself, so `GeneratorLag`
checks that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

from loadtest.measurement.percentiles import percentile
from loadtest.measurement.request_record import RequestRecord

# Seconds between the start and the first possible request, so that the first one is not late.
LEAD_S = 0.1
HEARTBEAT_S = 0.02


class Timed(Protocol):
    """Something to be sent at a given time."""

    @property
    def at_s(self) -> float:
        """When to send it, in seconds from the start of the run."""
        ...


T = TypeVar("T", bound=Timed)


@dataclass(frozen=True)
class GeneratorLag:
    """How late the generator itself was. Beyond `limit_s` the run is not a valid measurement.

    Attributes:
        p99_s: 99th percentile of how late requests were sent, in seconds.
        most_s: the latest of them, in seconds.
        limit_s: the most that is allowed, in seconds.
        loop_p99_s: 99th percentile of how late a heartbeat in the same event loop was, in seconds;
            received bytes may have been noticed that much later.
    """

    p99_s: float
    most_s: float
    limit_s: float
    loop_p99_s: float = 0.0

    @property
    def valid(self) -> bool:
        """Whether the run is a valid measurement."""
        return max(self.p99_s, self.loop_p99_s) <= self.limit_s

    @property
    def why_invalid(self) -> str | None:
        if self.valid:
            return None
        worst = max(self.p99_s, self.loop_p99_s)
        return (
            f"the load generator lagged {1000 * worst:.0f} ms (99th percentile) behind its "
            f"schedule, {1000 * self.limit_s:.0f} ms are allowed: run it on a machine of its own, "
            "or lower the rate"
        )


@dataclass(frozen=True)
class OpenLoopRun:
    """One run of the open loop.

    Attributes:
        records: one per request, in the order of the intended times.
        lag: how late the generator was.
        ended_s: when the last answer ended or was cut off, in seconds from the start.
    """

    records: list[RequestRecord]
    lag: GeneratorLag
    ended_s: float


async def run_open_loop(
    schedule: Sequence[T],
    send: Callable[[T, float, RequestRecord], Awaitable[None]],
    *,
    patience_s: float,
    max_lag_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> OpenLoopRun:
    """Send every item of a schedule at its time.

    Args:
        schedule: what to send, in the order of the times.
        send: sends one item: `(item, due time on the clock, record)`.
        patience_s: how long after the last request answers may still arrive, in seconds. Later
            ones are cut off and stay `unfinished`.
        max_lag_s: how late the generator may be, in seconds.
        clock: gives seconds.
    """
    records = [RequestRecord(item.at_s) for item in schedule]
    beats: list[float] = []
    heart = asyncio.create_task(_beat(beats, clock))
    origin = clock() + LEAD_S
    tasks = []
    try:
        for item, record in zip(schedule, records, strict=True):
            due = origin + item.at_s
            if (wait := due - clock()) > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(_sent(send, item, due, record, clock)))
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)
    finally:
        heart.cancel()
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(asyncio.CancelledError):
            await heart
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    late = [max(0.0, record.lag_s) for record in records if record.lag_s is not None] or [0.0]
    lag = GeneratorLag(percentile(late, 99), max(late), max_lag_s, percentile(beats or [0.0], 99))
    return OpenLoopRun(records, lag, clock() - origin)


async def _sent(
    send: Callable[[T, float, RequestRecord], Awaitable[None]],
    item: T,
    due: float,
    record: RequestRecord,
    clock: Callable[[], float],
) -> None:
    record.lag_s = clock() - due
    await send(item, due, record)


async def _beat(beats: list[float], clock: Callable[[], float]) -> None:
    """Measure again and again how much later than requested the event loop wakes up."""
    while True:
        began = clock()
        await asyncio.sleep(HEARTBEAT_S)
        beats.append(max(0.0, clock() - began - HEARTBEAT_S))
