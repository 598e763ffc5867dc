"""Timers: calls come in order and not too early, all on one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from service.worker.loading.timers import Timers


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
    started = time.monotonic()

    def ring(after: float) -> None:
        rang.append((after, time.monotonic() - started))
        if len(rang) == 4:
            over.set()

    for after in (0.8, 0.2, 0.6, 0.4):
        timers.after(after, lambda after=after: ring(after))  # type: ignore[misc]
        time.sleep(0.01)
    assert over.wait(10)
    assert [after for after, _ in rang] == [0.2, 0.4, 0.6, 0.8]
    assert all(at >= after for after, at in rang)


def test_one_thread_for_many(timers: Timers) -> None:
    assert not threads()
    left = threading.Semaphore(0)
    for number in range(200):
        timers.after(number % 7 / 1000, left.release)
    assert len(threads()) == 1
    assert all(left.acquire(timeout=10) for _ in range(200))
    timers.after(0.0, left.release)  # it slept with nothing to wait for
    assert left.acquire(timeout=10)
    assert len(threads()) == 1


def test_closed_it_calls_nobody(timers: Timers) -> None:
    called = threading.Event()
    timers.after(0.05, called.set)
    timers.close()
    assert not threads()
    assert not called.wait(0.1)
