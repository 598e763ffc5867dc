"""The reference of counts: sums, bounds, order, and the numbers docs/specification.md §2.4–§2.6
states."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.references.budgets import (
    ada_counts,
    allocate,
    headkv_counts,
    largest_remainder,
    pyramid_counts,
    pyramid_line,
)

WEIGHTS = st.lists(st.fractions(0, 50, max_denominator=12), min_size=1, max_size=9)


def test_largest_remainder_by_hand() -> None:
    halves = [Fraction(5, 2), Fraction(5, 2), Fraction(9, 10), Fraction(11, 10)]
    assert largest_remainder(halves, 7) == [3, 2, 1, 1]  # 0.9 first, then the lower half


def test_allocate_by_hand() -> None:
    """100 by 7 : 2 : 1 is 70, 20, 10. At most 40 for each: 60 by 2 : 1 is 40, 20, and 40 is not
    above the maximum. At most 30, the excess of the second goes to the third as well."""
    weights = [Fraction(7), Fraction(2), Fraction(1)]
    assert allocate(weights, 100, [100] * 3) == [70, 20, 10]
    assert allocate(weights, 100, [40] * 3) == [40, 40, 20]
    assert allocate(weights, 80, [30] * 3) == [30, 30, 20]
    assert allocate(weights, 500, [40, 30, 20]) == [40, 30, 20]
    assert allocate([Fraction(1), Fraction(0), Fraction(0)], 9, [4] * 3) == [4, 3, 2]


@given(WEIGHTS, st.integers(0, 300), st.data())
@settings(max_examples=400, deadline=None)
def test_sums_are_exact_within_bounds(
    weights: list[Fraction], total: int, data: st.DataObject
) -> None:
    most = data.draw(st.lists(st.integers(0, 60), min_size=len(weights), max_size=len(weights)))
    counts = allocate(weights, total, most)
    assert sum(counts) == min(total, sum(most))
    assert all(0 <= c <= m for c, m in zip(counts, most, strict=True))


@given(WEIGHTS, st.integers(0, 300), st.integers(0, 60))
@settings(max_examples=400, deadline=None)
def test_order_is_preserved(weights: list[Fraction], total: int, most: int) -> None:
    """One maximum for all: more weight is never fewer entries; equal weights are within one, the
    lower index ahead."""
    counts = allocate(weights, total, [most] * len(weights))
    for i, (w, c) in enumerate(zip(weights, counts, strict=True)):
        for w2, c2 in zip(weights[i + 1 :], counts[i + 1 :], strict=True):
            if w > w2:
                assert c >= c2
            if w < w2:
                assert c <= c2
            if w == w2:
                assert c2 <= c <= c2 + 1


@pytest.mark.parametrize(
    ("budget", "high", "low", "floored_sum", "overspent"),
    [(128, 234, 6, 4016, 0.046), (1024, 1982, 50, 32672, 0.005)],
)
def test_pyramid_numbers(
    budget: int, high: int, low: int, floored_sum: int, overspent: float
) -> None:
    """§2.4: L = 32, W = 8, β = 20. The public code's floored step overspends; ours does not."""
    b = budget - 8
    line = pyramid_line(b, 32, 6000, 6000 - 8)
    assert line[0] == high and line[-1] == low
    assert all(a - c == line[0] - line[1] for a, c in pairwise(line))
    step = (high - low) // 31
    floored = [high - layer * step for layer in range(32)]
    assert sum(floored) == floored_sum
    assert floored_sum / (32 * b) - 1 == pytest.approx(overspent, abs=5e-4)
    counts = pyramid_counts(b, 32, 6000, 6000 - 8)
    assert sum(counts) == 32 * b
    assert counts == sorted(counts, reverse=True)
    assert all(abs(c - real) < 1 for c, real in zip(counts, line, strict=True))


def test_pyramid_edges() -> None:
    assert pyramid_counts(10, 4, 19, 15) == [10] * 4  # T < 2b: uniform
    assert pyramid_counts(10, 1, 500, 400) == [10]
    assert pyramid_counts(10, 3, 20, 12) == [12, 10, 8]  # max is all competitors, min = 2b - max
    assert pyramid_counts(10, 3, 20, 20) == [20, 10, 0]  # b // β is 0
    assert pyramid_counts(0, 3, 40, 20) == [0, 0, 0]
    for b in range(30):
        for layers in range(1, 8):
            counts = pyramid_counts(b, layers, 60, 40)
            assert sum(counts) == layers * b and all(0 <= c <= 40 for c in counts)


def scores_of(heads: int, tokens: int, seed: int) -> list[list[float]]:
    source = random.Random(seed)
    return [[source.random() ** (3 * g + 1) for _ in range(tokens)] for g in range(heads)]


@pytest.mark.parametrize("seed", range(5))
def test_ada_counts(seed: int) -> None:
    """Exact sums; α = 1 is uniform; α = 0 is the flattened top; heads in order of their scores."""
    scores = scores_of(4, 30, seed)
    for b in (0, 1, 7, 29, 30):
        assert ada_counts(scores, b, 1.0) == [b] * 4
        flat = sorted((s for head in scores for s in head), reverse=True)[: 4 * b]
        assert ada_counts(scores, b, 0.0) == [sum(s in flat for s in head) for head in scores]
        assert sum(ada_counts(scores, b)) == 4 * b
    counts = ada_counts(scores, 7)
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1] >= 1  # ⌊0.2 · 7⌋


def test_ada_equal_heads_are_uniform_even_with_ties() -> None:
    """The token decides before the head does, or the first head would take all tied entries."""
    head = [0.1, 0.5, 0.5, 0.5, 0.2, 0.2, 0.5]
    for b in range(8):
        assert ada_counts([head] * 3, b) == [b] * 3
        assert ada_counts([[0.25] * 7] * 3, b) == [b] * 3


def test_headkv_counts() -> None:
    """β = 2, b = 8: half of 2 · 2 · 8 = 32 entries follow the scores, 4 a head are fixed."""
    uniform = [[0.25] * 4] * 2
    assert headkv_counts(uniform, 2, 8, 50) == [[8, 8], [8, 8]]
    one = [[1.0, 0.0, 0.0, 0.0], [0.0] * 4]
    assert headkv_counts(one, 2, 8, 50, beta=2) == [[20, 4], [4, 4]]  # 4 + 32 / 2
    assert headkv_counts(one, 2, 8, 11, beta=2) == [[11, 7], [7, 7]]  # 9 too many, 3 to each
    scaled = [[30.0, 0.0, 0.0, 0.0], [0.0] * 4]
    assert headkv_counts(scaled, 2, 8, 50, beta=2) == [[20, 4], [4, 4]]


@pytest.mark.parametrize("beta", [1.005, 1.01, 1.1, 1.2, 1.5, 2, 5, 10])
def test_headkv_spends_all_and_no_more(beta: float) -> None:
    source = random.Random(3)
    scores = [[source.random() ** 6 for _ in range(6)] for _ in range(5)]
    for b in (0, 1, 13, 40):
        counts = headkv_counts(scores, 3, b, 40, beta)
        flat = [c for layer in counts for c in layer]
        assert sum(flat) == 5 * 3 * b and all(0 <= c <= 40 for c in flat)
    mean = [sum(layer[2 * g : 2 * g + 2]) for layer in scores for g in range(3)]
    flat = [c for layer in headkv_counts(scores, 3, 13, 40, beta) for c in layer]
    order = sorted(range(15), key=lambda i: mean[i])
    assert [flat[i] for i in order] == sorted(flat)
