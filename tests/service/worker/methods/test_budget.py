"""Whole parts of a whole, by largest remainder (docs/specification.md §2.4–§2.6)."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from kvstitch.service.worker.methods.scores import apportion, exact
from tests.references.budgets import allocate

FREE = 10**9


@pytest.mark.parametrize(
    ("weights", "total", "limits", "parts"),
    [
        ([1, 1, 1], 10, [FREE] * 3, [4, 3, 3]),  # equal fractions: lower index
        ([1, 2, 3], 12, [FREE] * 3, [2, 4, 6]),
        ([10, 25, 65], 7, [FREE] * 3, [1, 2, 4]),  # 0.7, 1.75, 4.55: the largest fractions
        ([0.5, 0.25, 0.25], 2, [FREE] * 3, [1, 1, 0]),
        ([0, 0, 0], 5, [FREE] * 3, [2, 2, 1]),  # no weight at all: equal
        ([0, 1], 5, [FREE] * 2, [0, 5]),
        ([1, 1], 0, [FREE] * 2, [0, 0]),
        ([1, 1], -3, [FREE] * 2, [0, 0]),
        ([], 4, [], []),
        ([5], 3, [FREE], [3]),
        ([8, 1, 1], 10, [5, FREE, FREE], [5, 3, 2]),  # what one cannot take goes to the others
        ([8, 1, 1], 10, [5, 2, FREE], [5, 2, 3]),  # over and over
        ([1, 0, 0], 7, [4, FREE, FREE], [4, 2, 1]),  # none left with weight: equal
        ([1, 1], 9, [2, 3], [2, 3]),  # more than there is room for
        ([1, 1], 4, [0, FREE], [0, 4]),
    ],
)
def test_by_hand(weights: list[float], total: int, limits: list[int], parts: list[int]) -> None:
    assert apportion(weights, total, limits) == parts


def test_a_share_is_rounded_before_it_is_limited() -> None:
    """4.2, 1.4, 4.4: the first rounds down to its limit, and nobody's share changes by that. Were
    it limited first, 6 would be left for 14 : 44, and the last would get 5."""
    assert apportion([42, 14, 44], 10, [4, 9, 9]) == [4, 2, 4]


def random_case(rng: random.Random) -> tuple[list[Fraction], int, list[int]]:
    parts = rng.randint(1, 9)
    weights = [
        Fraction(rng.choice([0, 1, rng.randint(0, 20)]), rng.choice([1, 3, 8]))
        for _ in range(parts)
    ]
    limits = [rng.choice([rng.randint(0, 12), 40]) for _ in range(parts)]
    return weights, rng.randint(0, sum(limits)), limits


def test_sums_limits_and_order_on_random_cases() -> None:
    """Exact sum; within limits; a larger weight never gets less than a smaller one with as low a
    limit; the same whatever the weights' unit; the reference's parts."""
    rng = random.Random(0)
    for _ in range(3000):
        weights, total, limits = random_case(rng)
        parts = apportion(weights, total, limits)
        assert sum(parts) == total
        assert all(0 <= part <= limit for part, limit in zip(parts, limits, strict=True))
        for i, (w, limit) in enumerate(zip(weights, limits, strict=True)):
            for j, (v, other) in enumerate(zip(weights, limits, strict=True)):
                if w > v and limit >= other:
                    assert parts[i] >= parts[j]
        assert apportion([w / 7 for w in weights], total, limits) == parts
        assert allocate(weights, total, limits) == parts


def test_floats_are_taken_as_they_are() -> None:
    """0.1 is a hair above a tenth: no tie is invented, none is lost."""
    assert apportion([0.1, Fraction(1, 10)], 1, [1, 1]) == [1, 0]
    assert apportion([Fraction(1, 10), 0.1], 1, [1, 1]) == [0, 1]
    assert apportion([exact(0.1), Fraction(1, 10)], 3, [3, 3]) == [2, 1]


@pytest.mark.parametrize(
    ("number", "fraction"),
    [
        (0.29, Fraction(29, 100)),
        (1.005, Fraction(201, 200)),
        (3, Fraction(3)),
        (1e-7, Fraction(1, 10**7)),
    ],
)
def test_exact_is_the_decimal_that_was_written(number: float, fraction: Fraction) -> None:
    assert exact(number) == fraction
