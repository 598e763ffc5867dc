from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from loadtest.traffic.arrivals import poisson


def test_a_seed_is_a_schedule() -> None:
    assert poisson(3.0, 50.0, 7) == poisson(3.0, 50.0, 7)
    assert poisson(3.0, 50.0, 7) != poisson(3.0, 50.0, 8)


@pytest.mark.parametrize("rate", [0.5, 4.0, 50.0])
def test_the_process_is_poisson(rate: float) -> None:
    """Gaps and counts per second, within some standard errors for this seed."""
    seconds = 20_000 / rate
    arrivals = poisson(rate, seconds, 1)
    assert arrivals == sorted(arrivals) and arrivals[0] > 0 and arrivals[-1] < seconds
    assert len(arrivals) == 20_000
    gaps = [b - a for a, b in itertools.pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    # Exponential gaps: deviation and mean are the same. Evenly spaced ones would have deviation 0.
    assert math.isclose(math.sqrt(variance), mean, rel_tol=0.05)
    assert math.isclose(sum(gap > mean for gap in gaps) / len(gaps), 1 / math.e, abs_tol=0.015)
    # As many expected in each part of the time: the count's variance is its mean.
    parts = Counter(int(at / seconds * 2000) for at in arrivals)
    counts = [parts[part] for part in range(2000)]
    assert math.isclose(sum((c - 10) ** 2 for c in counts) / 2000, 10, rel_tol=0.15)
    # Gaps do not know of each other.
    covariance = sum((a - mean) * (b - mean) for a, b in itertools.pairwise(gaps)) / len(gaps)
    assert abs(covariance / variance) < 4 / math.sqrt(len(gaps))


@pytest.mark.parametrize(("rate", "seconds"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0)])
def test_nothing_to_send_is_an_error(rate: float, seconds: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        poisson(rate, seconds, 1)
