from __future__ import annotations

from typing import Any

import pytest

from loadtest.reporting.knee import Knee, find_knee, ratio


def steps(*points: tuple[float, float | None], valid: bool = True) -> list[dict[str, Any]]:
    return [{"rate": r, "slo_attainment": a, "valid": valid} for r, a in points]


def test_the_knee_is_the_last_rate_before_the_first_miss() -> None:
    found = find_knee(steps((4, 0.7), (1, 1.0), (2, 0.95), (8, 0.99)), 0.9)
    # The good result at 8/s is chance. From 0.95 at 2/s to 0.7 at 4/s, 0.9 is a fifth of the way.
    assert found.rate == 2 and found.crossing == pytest.approx(2.4)


def test_ends_of_the_range() -> None:
    assert find_knee(steps((1, 0.5), (2, 0.4)), 0.9) == Knee(None, None)
    assert find_knee(steps((1, 1.0), (2, 0.9)), 0.9) == Knee(2, None)
    assert find_knee([], 0.9) == Knee(None, None)


def test_steps_that_are_no_measurement_say_nothing() -> None:
    given = [*steps((1, 1.0), (4, 1.0)), *steps((2, 0.0), valid=False), *steps((3, None))]
    assert find_knee(given, 0.9) == Knee(4, None)


def test_how_much_further_right() -> None:
    base = Knee(1.0, 1.5)
    assert ratio(Knee(3.0, 4.5), base) == (3.0, False)
    assert ratio(Knee(6.0, None), base) == (4.0, True)
    assert ratio(Knee(None, None), base) is None
    assert ratio(base, Knee(6.0, None)) is None
