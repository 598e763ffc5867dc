"""Timers: calls come in order and not too early, all on one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from service.worker.loading.stream_reader import Timers


@pytest.fixture
def timers() -> Iterator[Timers]:
    out = Timers()
    yield out
    out.close()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "alarms"]


def test_in_order_and_not_before_their_time(timers: Timers) -> None:
    """Set in any order, also while it sleeps until a later one."""
    rang: list[tuple[float, float]] = []
    over = threading.Event()

    def ring(due: float) -> None:
        rang.append((due, time.monotonic()))
        if len(rang) == 4:
            over.set()

    begun = time.monotonic()
    for due in (0.8, 0.2, 0.6, 0.4):
        timers.after(begun + due - time.monotonic(), lambda due=due: ring(due))  # type: ignore[misc]
        time.sleep(0.01)
    assert over.wait(120)
    # A machine that stood still meanwhile may have set some when their time was over.
    late = time.monotonic() - begun
    assert late > 0.8 and all(at >= begun + due for due, at in rang)
    assert [due for due, _ in rang] == [0.2, 0.4, 0.6, 0.8]


def test_one_thread_for_many(timers: Timers) -> None:
    assert not threads()
    left = threading.Semaphore(0)
    for number in range(200):
        timers.after(number % 7 / 1000, left.release)
    assert len(threads()) == 1
    assert all(left.acquire(timeout=120) for _ in range(200))
    timers.after(0.0, left.release)  # it slept with nothing to wait for
    assert left.acquire(timeout=120)
    assert len(threads()) == 1


def test_closed_it_calls_nobody(timers: Timers) -> None:
    called = threading.Event()
    timers.after(60.0, called.set)
    timers.close()
    assert not threads() and not called.is_set()
