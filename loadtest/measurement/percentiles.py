"""Means, standard deviations and percentiles, computed like numpy's (linear interpolation)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

PERCENTILES = (50, 90, 95, 99)


def percentile(samples: Iterable[float], q: float) -> float:
    """The q-th percentile, q from 0 to 100.

    Raises:
        ValueError: there are no samples.
    """
    values = sorted(samples)
    if not values or not 0 <= q <= 100:
        raise ValueError(f"no percentile {q} of {len(values)} samples")
    place = (len(values) - 1) * q / 100
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (place - below)


def mean(samples: Sequence[float]) -> float:
    return math.fsum(samples) / len(samples)


def deviation(samples: Sequence[float]) -> float:
    """The standard deviation of the whole population, like numpy's `std`."""
    middle = mean(samples)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in samples) / len(samples))


def in_milliseconds(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    """The statistics mean_NAME_ms, median_NAME_ms, std_NAME_ms, pXX_NAME_ms; None if no samples."""
    statistics: dict[str, Callable[[Sequence[float]], float]] = {
        "mean": mean,
        "median": partial(percentile, q=50),
        "std": deviation,
        **{f"p{q}": partial(percentile, q=q) for q in PERCENTILES},
    }
    return {
        f"{statistic}_{name}_ms": 1000 * compute(seconds) if seconds else None
        for statistic, compute in statistics.items()
    }
