"""Tests whether one method is better than another on the same prompts.

p is that of a two-sided sign-flip permutation test: if the methods were equally good, each
difference could as well have the other sign, so p is the share of sign choices whose |sum| is at
least the observed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvstitch_tune.statistics import Bootstrap, Estimate

EXACT = 14
"""With at most this many prompts that differ, all 2^n sign choices are tried."""
DRAWS = 10_000
_AT_ONCE = 500
_TOLERANCE = 1e-9  # sums that are mathematically equal can differ by rounding


@dataclass(frozen=True)
class Paired:
    """Our scores minus theirs: mean with its bootstrap interval, and the p value."""

    difference: Estimate
    p: float


def paired(ours: Sequence[float], theirs: Sequence[float], *, seed: int = 0) -> Paired:
    """Compares two lists of scores of the same prompts."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    interval = Bootstrap(len(differences), seed=seed).mean(differences)
    return Paired(interval, sign_flip(differences, seed=seed))


def sign_flip(differences: Sequence[float], *, seed: int = 0, draws: int = DRAWS) -> float:
    """p value of the mean of `differences`, by the sign-flip permutation test.

    With more than `EXACT` differences that are not 0, `draws` random sign choices are used and the
    observed one is counted among them, so p is at least 1 / (draws + 1).
    """
    terms = np.array(differences, dtype=np.float64)
    terms = terms[terms != 0]
    if len(terms) <= EXACT:
        every = (np.arange(1 << len(terms))[:, None] >> np.arange(len(terms))) & 1
        return _as_large(every, terms) / len(every)
    source = np.random.default_rng(seed)
    hits = 1
    for start in range(0, draws, _AT_ONCE):
        shape = (min(_AT_ONCE, draws - start), len(terms))
        hits += _as_large(source.integers(0, 2, shape, dtype=np.int8), terms)
    return hits / (draws + 1)


def _as_large(flipped: NDArray[np.integer], terms: NDArray[np.float64]) -> int:
    """Number of rows of `flipped` (1: sign flipped) whose |sum| is at least that of no flips."""
    total = terms.sum()
    sums = total - 2 * (flipped @ terms)
    return int((np.abs(sums) >= abs(total) - _TOLERANCE * np.abs(terms).sum()).sum())


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusts p values for multiple comparisons by Holm's method, keeping their order.

    Of m sorted values the i-th smallest becomes the maximum over j ≤ i of (m − j + 1) p_j, at most
    1. Rejecting all that are at most α keeps the chance of any false rejection at α.

    Source: Holm (1979), A simple sequentially rejective multiple test procedure.
    """
    adjusted, highest = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = highest
    return adjusted
