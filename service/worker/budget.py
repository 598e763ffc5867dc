"""Splits a whole number into parts that add up to it exactly. Knows no method, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction


def apportion(weights: Sequence[float], total: int, limits: Sequence[int]) -> list[int]:
    """`total` in proportion to `weights`, part i at most `limits[i]`, by largest remainder.

    A part that its share would lift to its limit gets the limit; the rest is shared among the
    others by the same weights. What is left after rounding down goes to the largest fractions,
    lower index first. All-zero weights count as equal. The parts add up to
    min(total, sum(limits)), whatever the rounding.
    """
    exact = [Fraction(w) for w in weights]
    parts = [0] * len(exact)
    open_parts = list(range(len(exact)))
    left = max(0, min(total, sum(limits)))
    while left and open_parts:
        mass = sum(exact[i] for i in open_parts)
        shares = {
            i: left * exact[i] / mass if mass else Fraction(left, len(open_parts))
            for i in open_parts
        }
        full = [i for i in open_parts if shares[i] >= limits[i]]
        for i in full:
            parts[i] = limits[i]
            left -= limits[i]
            open_parts.remove(i)
        if full:
            continue
        for i in open_parts:
            parts[i] = int(shares[i])
        left -= sum(parts[i] for i in open_parts)
        by_fraction = sorted(open_parts, key=lambda i: (parts[i] - shares[i], i))
        for i in by_fraction[:left]:
            parts[i] += 1
        break
    return parts
