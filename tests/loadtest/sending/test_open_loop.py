from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass

import pytest

from loadtest.measurement.request_record import OK, UNFINISHED, RequestRecord
from loadtest.sending.open_loop import GeneratorLag, run_open_loop


@dataclass(frozen=True)
class Item:
    at_s: float


PROMPT = 10.0
"""A limit of lag, in seconds, that is never reached."""


async def test_slow_answers_hold_nothing_back() -> None:
    """All requests are sent before the first is answered, and each counts from its own time."""
    items = [Item(0.01 * index) for index in range(20)]
    started: list[float] = []
    answered: list[float] = []
    all_started = asyncio.Event()

    async def send(item: Item, due: float, record: RequestRecord) -> None:
        started.append(due)
        if len(started) == len(items):
            answered.append(time.perf_counter())
            all_started.set()
        await all_started.wait()
        record.outcome, record.e2e_s = OK, answered[0] - due

    done = await run_open_loop(items, send, patience_s=60.0, max_lag_s=PROMPT)
    assert [record.outcome for record in done.records] == [OK] * 20
    gaps = [b - a for a, b in itertools.pairwise(started)]
    assert gaps == pytest.approx([0.01] * 19)
    # The first request waited for the last one, and its latency includes this wait.
    first, last = done.records[0].e2e_s, done.records[-1].e2e_s
    assert first is not None and last is not None and first - last == pytest.approx(0.19)


async def test_what_is_not_answered_in_time_is_cut_and_kept() -> None:
    cut = []

    async def send(item: Item, due: float, record: RequestRecord) -> None:
        record.ttft_s = 0.5
        if item.at_s == 0.0:
            record.outcome = OK
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cut.append(item.at_s)
            raise

    done = await run_open_loop([Item(0.0), Item(0.01)], send, patience_s=0.05, max_lag_s=PROMPT)
    assert [record.outcome for record in done.records] == [OK, UNFINISHED]
    assert cut == [0.01] and done.records[1].ttft_s == 0.5


async def test_a_generator_that_lagged_says_so() -> None:
    """The first send blocks the loop, so the others are late and the run is invalid."""

    async def send(item: Item, due: float, record: RequestRecord) -> None:
        if item.at_s == 0.0:
            time.sleep(0.5)
        record.outcome = OK

    items = [Item(0.0), Item(0.1), Item(0.2)]
    done = await run_open_loop(items, send, patience_s=1.0, max_lag_s=0.15)
    assert not done.lag.valid
    assert "lagged" in (done.lag.why_invalid or "") and "150 ms are allowed" in str(
        done.lag.why_invalid
    )
    # Latency counts from the due times all the same.
    lag = [record.lag_s or 0.0 for record in done.records]
    assert lag[1] >= 0.4 and lag[2] >= 0.3


def test_a_loop_that_stood_still_is_lag_even_if_nothing_was_due() -> None:
    assert GeneratorLag(0.001, 0.002, limit_s=0.05, loop_p99_s=0.2).why_invalid is not None
    assert GeneratorLag(0.001, 0.2, limit_s=0.05, loop_p99_s=0.04).why_invalid is None


async def test_a_fault_of_the_generator_is_no_result() -> None:
    async def send(item: Item, due: float, record: RequestRecord) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_open_loop([Item(0.0)], send, patience_s=1.0, max_lag_s=PROMPT)
