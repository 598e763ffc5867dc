"""The rate at which KV is stored, by a clock that the test moves, and what it takes on disk."""

from __future__ import annotations

from typing import Any

import pytest

from service.gateway.documents.pace import MEASURED_TOKENS, RATE_WINDOW_S, Pace
from service.messages.replies import ModelInfo, Precomputed

STORED = Precomputed("1", 1, "stored", 5000, 1.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_recent_tokens_over_their_time() -> None:
    clock = Clock()
    rate = Pace(1, clock)
    assert rate.seconds_for(100) is None
    rate.begin()
    assert rate.seconds_for(100) is None
    for _ in range(4):
        clock.now += 1
        rate.add(STORED, "", 500)
    assert rate.per_s == 500 and rate.seconds_for(1000) == 2
    clock.now += 4  # nothing finishes: others are served
    assert rate.per_s == 250


def test_the_last_minute_counts() -> None:
    clock = Clock()
    rate = Pace(1, clock)
    rate.begin()
    for _ in range(100):
        clock.now += 1
        rate.add(STORED, "", 10)
    for _ in range(int(RATE_WINDOW_S) + 1):
        clock.now += 1
        rate.add(STORED, "", 30)
    assert rate.per_s == 30


def test_time_without_work_does_not_count() -> None:
    clock = Clock()
    rate = Pace(1, clock)
    rate.begin()
    clock.now += 2
    rate.add(STORED, "", 2000)
    rate.end()
    clock.now += 1000
    assert rate.per_s == 1000
    rate.begin()
    clock.now += 0.1
    rate.add(
        STORED, "", 900
    )  # stored already, so it was answered at once: nothing is known from that
    assert rate.per_s == 1000
    clock.now += 0.9
    assert rate.per_s == 900


def test_a_note_tells_nothing() -> None:
    """It waits for its turn for a minute: a book behind it would take years at that rate."""
    clock = Clock()
    rate = Pace(1, clock)
    rate.begin()
    clock.now += 60
    rate.add(STORED, "", 12)
    assert rate.per_s is None
    rate.end()
    assert rate.per_s is None and rate.seconds_for(2_500_000) is None


def model(**fields: Any) -> ModelInfo:
    given: dict[str, Any] = {
        "name": "m", "fingerprint": "f", "family": "llama", "layers": 2, "kv_heads": 1,
        "head_dim": 8, "dtype": "bfloat16", "max_context": 64, "kv_bytes_per_token": 1600,
        "codec": "raw", "device": "cpu", **fields,
    }  # fmt: skip
    return ModelInfo(**given)


def test_bytes_per_token_are_expected_by_codec_and_then_measured() -> None:
    stored = Pace(copies=2)
    assert stored.bytes_per_token(model()) == 3200
    assert stored.bytes_per_token(model(codec="int8")) == 1700
    assert stored.bytes_per_token(model(dtype="float32", codec="int8")) == 850
    stored.add(STORED, "", MEASURED_TOKENS - 1)
    assert stored.bytes_per_token(model()) == 3200
    stored.add(Precomputed("1", 1, "present", 0, 0.0), "", 5000)
    stored.add(STORED, "", 1)
    assert stored.bytes_per_token(model()) == pytest.approx(10_000 / MEASURED_TOKENS)
