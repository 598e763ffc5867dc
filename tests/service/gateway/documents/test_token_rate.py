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
        rate.add(500)
    assert rate.per_s == 500 and rate.seconds_for(1000) == 2
    clock.now += 4  # nothing finishes: others are served
    assert rate.per_s == 250


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
    rate.add(2000)
    rate.end()
    clock.now += 1000
    assert rate.per_s == 1000
    rate.begin()
    clock.now += 0.1
    rate.add(900)  # stored already, so it was answered at once: nothing is known from that
    assert rate.per_s == 1000
    clock.now += 0.9
    assert rate.per_s == 900


def test_a_note_tells_nothing() -> None:
    """It waits for its turn for a minute: a book behind it would take years at that rate."""
    clock = Clock()
    rate = TokenRate(clock)
    rate.begin()
    clock.now += 60
    rate.add(12)
    assert rate.per_s is None
    rate.end()
    assert rate.per_s is None and rate.seconds_for(2_500_000) is None
