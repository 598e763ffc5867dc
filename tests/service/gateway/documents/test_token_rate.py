"""The rate at which KV is stored, by a clock that the test moves."""

from __future__ import annotations

from service.gateway.documents.ingest_loops import RATE_WINDOW_S, TokenRate


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_recent_tokens_over_their_time() -> None:
    clock = Clock()
    rate = TokenRate(clock)
    assert rate.seconds_for(100) is None
    rate.begin()
    assert rate.seconds_for(100) is None
    for _ in range(4):
        clock.now += 1
        rate.add(50)
    assert rate.per_s == 50 and rate.seconds_for(100) == 2
    clock.now += 4  # nothing finishes: others are served
    assert rate.per_s == 25


def test_the_last_minute_counts() -> None:
    clock = Clock()
    rate = TokenRate(clock)
    rate.begin()
    for _ in range(100):
        clock.now += 1
        rate.add(10)
    for _ in range(int(RATE_WINDOW_S) + 1):
        clock.now += 1
        rate.add(30)
    assert rate.per_s == 30


def test_time_without_work_does_not_count() -> None:
    clock = Clock()
    rate = TokenRate(clock)
    rate.begin()
    clock.now += 2
    rate.add(20)
    rate.end()
    clock.now += 1000
    assert rate.per_s == 10
    rate.begin()
    clock.now += 0.1
    rate.add(900)  # stored already, so it was answered at once: nothing is known from that
    assert rate.per_s == 10
    clock.now += 0.9
    assert rate.per_s == 900
