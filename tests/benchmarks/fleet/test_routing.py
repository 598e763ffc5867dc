"""TTFT is compared request by request, and rounds in which something failed do not count."""

from __future__ import annotations

import pytest

from benchmarks.fleet.routing import paired


def measured(policy: str, number: int, ttft_s: list[float], failed: int = 0) -> dict[str, object]:
    return {"policy": policy, "round": number, "ttft_s": ttft_s, "failed": failed, "tiers": {}}


def test_requests_are_compared_with_the_same_ones() -> None:
    rounds = [
        measured("cost", 0, [1.0, 2.0, 3.0]),
        measured("round_robin", 0, [2.0, 2.0, 4.0]),
        measured("round_robin", 1, [1.0, 1.0, 1.0]),
        measured("cost", 1, [0.5, 1.0, 3.0]),
    ]
    found = paired(rounds)
    assert list(found) == ["cost"]
    assert found["cost"]["against"] == "round_robin"
    assert found["cost"]["ratio_of_means_by_round"] == [0.75, 1.5]
    assert found["cost"]["median_ratio"] == pytest.approx(0.875)
    assert found["cost"]["requests"] == 6


def test_a_round_with_a_failure_is_left_out() -> None:
    rounds = [measured("cost", 0, [1.0], failed=1), measured("round_robin", 0, [1.0, 1.0])]
    assert paired(rounds) == {}
