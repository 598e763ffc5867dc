"""Tests whether one method is better than another on the same samples.

With K tasks, n_t samples of task t and d_ti = ours − theirs on its sample i, the difference is the
macro average D = 1/K Σ_t 1/n_t Σ_i d_ti: every task counts the same, however many samples it has.

The interval is that of the percentile bootstrap, with pairs of samples redrawn within each task. p
is that of a two-sided sign-flip permutation test: if the methods were equally good, each d_ti could
as well have the other sign, so p is the share of sign choices whose |D| is at least the observed
one. For scores of 0 and 1 McNemar's exact test is given as well. With w samples that only we
answer correctly and l that only they do, p = min(1, 2 P(X ≤ min(w, l))), X ~ Binomial(w + l, ½);
this test ignores tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tuning.statistics import Bootstrap, Estimate

EXACT = 14
"""With at most this many samples that differ, all 2^n sign choices are tried."""
DRAWS = 10_000
_AT_ONCE = 500
_TOLERANCE = 1e-9  # sums that are mathematically equal can differ by rounding

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Paired:
    """Our scores minus theirs. `mcnemar` is None unless all scores are 0 or 1."""

    difference: Estimate
    p: float
    mcnemar: float | None
    won: int
    lost: int
    tied: int


def paired(
    tasks: Sequence[str], ours: Sequence[float], theirs: Sequence[float], *, seed: int = 0
) -> Paired:
    """Compares two lists of scores on the same samples.

    The result depends on `seed` and on the order of a task's samples, but not on how samples of
    different tasks are mixed.

    Args:
        tasks: the task of every sample.
        ours: our score of every sample.
        theirs: their score of every sample.
        seed: of the resampling.
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    won, lost = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    binary = all(score in (0, 1) for score in (*ours, *theirs))
    return Paired(
        macro(tasks, differences, seed=seed),
        sign_flip(tasks, differences, seed=seed),
        mcnemar(won, lost) if binary else None,
        won,
        lost,
        len(differences) - won - lost,
    )


def macro(tasks: Sequence[str], values: Sequence[float], *, seed: int = 0) -> Estimate:
    """Mean over tasks of the tasks' means, with its interval; all NaN if there are no values."""
    if not values:
        return Estimate(math.nan, math.nan, math.nan)
    groups = _by_task(tasks, values)
    means = np.mean(
        [_stratum(len(own), _seed(seed, place)).means(own) for place, own in enumerate(groups)],
        axis=0,
    )
    low, high = np.percentile(means, (2.5, 97.5))
    return Estimate(float(np.mean([own.mean() for own in groups])), float(low), float(high))


def sign_flip(
    tasks: Sequence[str], differences: Sequence[float], *, seed: int = 0, draws: int = DRAWS
) -> float:
    """p value of the macro average of `differences`, by the sign-flip permutation test.

    With more than `EXACT` differences that are not 0, `draws` random sign choices are used and the
    observed one is counted among them, so p is at least 1 / (draws + 1).
    """
    groups = _by_task(tasks, differences)
    shares = [own / (len(own) * len(groups)) for own in groups]
    terms = np.concatenate([*shares, np.zeros(0)])
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


def _as_large(flipped: NDArray[np.integer], terms: Floats) -> int:
    """Number of rows of `flipped` (1: sign flipped) whose |sum| is at least that of no flips."""
    total = terms.sum()
    sums = total - 2 * (flipped @ terms)
    return int((np.abs(sums) >= abs(total) - _TOLERANCE * np.abs(terms).sum()).sum())


def mcnemar(won: int, lost: int) -> float:
    """McNemar's exact two-sided p value."""
    discordant = won + lost
    tail = sum(math.comb(discordant, k) for k in range(min(won, lost) + 1))
    return min(1.0, 2 * tail / (1 << discordant))


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


class _Stratum(Bootstrap):
    """Bootstrap of one task, which also gives the resampled means, to be averaged over tasks."""

    def means(self, values: Floats) -> Floats:
        return self._weights @ values / len(values)


@lru_cache(maxsize=64)
def _stratum(count: int, seed: int) -> _Stratum:
    """Cached: drawing 2,000 resamples of some hundred samples takes longer than using them."""
    return _Stratum(count, seed=seed)


def _by_task(tasks: Sequence[str], values: Sequence[float]) -> list[Floats]:
    """Values grouped by task, tasks sorted by name."""
    groups: dict[str, list[float]] = {task: [] for task in sorted(set(tasks))}
    for task, value in zip(tasks, values, strict=True):
        groups[task].append(value)
    return [np.array(own, dtype=np.float64) for own in groups.values()]


def _seed(seed: int, place: int) -> int:
    """A seed of its own for each task, or tasks of the same size would be resampled alike."""
    return int(np.random.SeedSequence((seed, place)).generate_state(1)[0])
