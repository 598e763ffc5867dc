from __future__ import annotations

import itertools
import math

import pytest

from loadtest.arrivals import poisson


def test_a_seed_is_a_schedule() -> None:
    assert poisson(3.0, 50.0, 7) == poisson(3.0, 50.0, 7)
    assert poisson(3.0, 50.0, 7) != poisson(3.0, 50.0, 8)


@pytest.mark.parametrize("rate", [0.5, 4.0, 50.0])
def test_the_process_is_poisson(rate: float) -> None:
    """Number, gaps and counts per second, within four standard errors for this seed."""
    seconds = 20_000 / rate
    arrivals = poisson(rate, seconds, 1)
    assert arrivals == sorted(arrivals) and arrivals[0] > 0 and arrivals[-1] < seconds
    assert abs(len(arrivals) - 20_000) < 4 * math.sqrt(20_000)
    gaps = [b - a for a, b in itertools.pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    # Exponential gaps: deviation and mean are the same. Evenly spaced ones would have deviation 0.
    assert math.isclose(math.sqrt(variance), mean, rel_tol=0.05)
    assert math.isclose(sum(gap > mean for gap in gaps) / len(gaps), 1 / math.e, abs_tol=0.015)
    # Gaps do not know of each other.
    covariance = sum((a - mean) * (b - mean) for a, b in itertools.pairwise(gaps)) / len(gaps)
    assert abs(covariance / variance) < 4 / math.sqrt(len(gaps))


@pytest.mark.parametrize(("rate", "seconds"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0)])
def test_nothing_to_send_is_an_error(rate: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        poisson(rate, seconds, 1)
