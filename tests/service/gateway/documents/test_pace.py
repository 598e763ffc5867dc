"""How long ingestion takes, by a clock that the test moves, and what its KV takes on disk."""

from __future__ import annotations

from typing import Any

import pytest

from kvstitch.service.gateway.documents.pace import (
    HORIZON_S,
    MARGIN,
    MEASURED_TOKENS,
    MOST_POINTS,
    Pace,
    Rate,
    WorkAhead,
)
from kvstitch.service.messages.replies import ModelInfo, Precomputed

STORED = Precomputed("1", 1, "stored", 5000, 1.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_was_done_over_its_time() -> None:
    clock = Clock()
    rate = Rate(256.0, clock)
    assert rate.time_for(100) is None
    rate.begin()
    assert rate.per_s() is None and rate.time_for(100) is None
    for _ in range(4):
        clock.now += 1
        rate.add(500)
    assert rate.per_s() == 500
    takes = rate.time_for(1000)
    assert takes is not None
    assert list(takes) == pytest.approx([2 * (1 - MARGIN), 2, 2 * (1 + MARGIN)])
    clock.now += 4  # nothing finishes: others are served
    assert rate.per_s() == 250


def test_as_much_of_the_past_counts_as_is_asked_of_the_future() -> None:
    clock = Clock()
    rate = Rate(1.0, clock)
    rate.begin()
    for second in range(4 * MOST_POINTS):  # half an hour of 30, then questions
        clock.now += 1
        rate.add(30 if second < 4 * MOST_POINTS - HORIZON_S else 10)
    long, short = rate.time_for(30 * 1800), rate.time_for(10 * 60)
    assert long is not None and short is not None
    assert 1800 <= long[1] < 1.2 * 1800 and long[2] > 1.3 * 1800
    assert 55 <= short[1] <= 65


def test_time_without_work_does_not_count() -> None:
    clock = Clock()
    rate = Rate(256.0, clock)
    rate.begin()
    clock.now += 2
    rate.add(2000)
    rate.end()
    clock.now += 1000
    assert rate.per_s() == 1000
    rate.begin()
    clock.now += 2
    rate.add(2000)
    assert rate.per_s() == 1000


def test_a_note_tells_nothing() -> None:
    """It waits for its turn for a minute: a book behind it would take years at that rate."""
    clock = Clock()
    rate = Rate(256.0, clock)
    rate.begin()
    clock.now += 60
    rate.add(12)
    assert rate.per_s() is None
    rate.end()
    assert rate.per_s() is None and rate.time_for(2_500_000) is None


def test_what_is_unchanged_takes_no_kv_and_little_else() -> None:
    """Whether it is known before, by its digest, or learned of those that came first."""
    clock = Clock()
    pace = Pace(1, clock)
    work = WorkAhead(new_bytes=1000, tokens=100)
    pace.indexing.begin()
    clock.now += 10
    pace.indexed(900, "created", 300, known=False)
    pace.indexed(100, "created", 100, known=False)
    assert pace.time_for(work) is None  # no KV was stored yet
    pace.storing.begin()
    clock.now += 10
    pace.add(STORED, "", 400)
    pace.storing.end()
    before = pace.time_for(work)  # 1,000 bytes in 20 s, then 100 + 400 tokens at 40 a second
    assert before is not None and before[1] == pytest.approx(20 + 12.5, rel=0.01)
    known = pace.time_for(WorkAhead(known_bytes=1000, tokens=100))
    assert known is not None and known[1] == pytest.approx(2 + 2.5, rel=0.01)
    pace.end_indexing()
    pace.indexing.begin()
    pace.indexed(900, "unchanged", 300, known=False)
    pace.indexed(100, "updated", 40, known=False)
    learned, rate = pace.time_for(WorkAhead(new_bytes=1000)), pace.indexing.per_s()
    assert learned is not None and rate is not None
    assert learned[1] == pytest.approx(190 / rate + 40 / 40, rel=0.01)


def test_a_chunk_that_was_stored_already_says_nothing_of_the_rate() -> None:
    clock = Clock()
    pace = Pace(1, clock)
    pace.storing.begin()
    clock.now += 1
    pace.add(STORED, "", 300)
    pace.add(Precomputed("1", 1, "present", 0, 0.0), "", 10_000)
    assert pace.storing.per_s() == 300


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
    assert stored.bytes_per_token(model(stored_bytes_per_token=850.5)) == 1701
    stored.add(STORED, "", MEASURED_TOKENS - 1)
    assert stored.bytes_per_token(model()) == 3200
    stored.add(Precomputed("1", 1, "present", 0, 0.0), "", 5000)
    stored.add(STORED, "", 1)
    assert stored.bytes_per_token(model()) == pytest.approx(10_000 / MEASURED_TOKENS)
