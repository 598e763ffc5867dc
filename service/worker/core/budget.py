"""Splits a whole number, such as a budget of tokens, into parts that add up to it exactly."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm


def exact(number: float) -> Fraction:
    """The number as it was written in decimal: 0.29 is 29/100, not the nearest binary fraction."""
    return Fraction(str(number))


def apportion(weights: Sequence[float | Fraction], total: int, limits: Sequence[int]) -> list[int]:
    """Splits `total` in proportion to `weights`, with a limit for each part.

    Uses the largest-remainder method: every share is rounded down, and what is left goes to the
    largest fractions, lower index first. Parts above their limit get the limit, and the others
    share the rest again by the same weights.

    Args:
        weights: not negative; if all are zero they count as equal.
        total: to be split.
        limits: part i is at most `limits[i]`.

    Returns:
        Parts that add up to exactly min(total, sum(limits)).
    """
    ratios = [Fraction(w) for w in weights]
    scale = lcm(*(r.denominator for r in ratios))
    whole = [int(r * scale) for r in ratios]
    parts = [0] * len(whole)
    open_parts = list(range(len(whole)))
    left = max(0, min(total, sum(limits)))
    while open_parts:
        shares = _largest_remainder([whole[i] for i in open_parts], left)
        for i, share in zip(open_parts, shares, strict=True):
            parts[i] = min(share, limits[i])
        over = [i for i, s in zip(open_parts, shares, strict=True) if s > limits[i]]
        if not over:
            break
        left -= sum(limits[i] for i in over)
        open_parts = [i for i in open_parts if i not in over]
    return parts


def _largest_remainder(weights: Sequence[int], total: int) -> list[int]:
    """`total` in proportion to `weights`; whole numbers, so that equal fractions are equal."""
    mass = sum(weights)
    if not mass:
        weights, mass = [1] * len(weights), len(weights)
    parts = [total * w // mass for w in weights]
    by_fraction = sorted(range(len(parts)), key=lambda i: (-(total * weights[i] % mass), i))
    for i in by_fraction[: total - sum(parts)]:
        parts[i] += 1
    return parts
