"""Whether one method is better than another on the same samples.

With K tasks, n_t samples of task t and d_ti = ours − theirs on its sample i, the difference is the
macro average D = 1/K Σ_t 1/n_t Σ_i d_ti: every task counts the same, however many samples it has.

Its interval is the percentile bootstrap's, samples drawn anew within each task, in pairs. Its p is
of a sign-flip permutation test, two-sided: were the methods alike, each d_ti would be as likely to
have the other sign, so p is the share of sign choices whose |D| is at least the one seen. For
scores of 0 and 1 there is McNemar's exact test besides: of w samples only we get right and l only
they do, p = min(1, 2 P(X ≤ min(w, l))), X ~ Binomial(w + l, ½); tasks do not count there.
Knows no files and no metrics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.fidelity.report.statistics import Bootstrap, Estimate

EXACT = 14
"""Up to as many samples that differ, all 2^n sign choices are tried."""
DRAWS = 10_000
_AT_ONCE = 500
_TOLERANCE = 1e-9  # sums that are equal on paper differ by rounding

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Paired:
    """Ours less theirs. `mcnemar` is None unless all scores are 0 or 1."""

    difference: Estimate
    p: float
    mcnemar: float | None
    won: int
    lost: int
    tied: int


def paired(
    tasks: Sequence[str], ours: Sequence[float], theirs: Sequence[float], *, seed: int = 0
) -> Paired:
    """`tasks`, `ours` and `theirs` by sample. Figures depend on `seed` and the order of a task's
    samples, not on how tasks are mixed."""
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
    """The mean over tasks of their means; NaN all if there was no value."""
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
    """p of the macro average of `differences`. Beyond `EXACT` that are not 0, from `draws` random
    choices, the one seen counted among them: p is at least 1 / (draws + 1)."""
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
    """Rows of `flipped`, 1 where a term changes its sign, whose |sum| is at least that of none."""
    total = terms.sum()
    sums = total - 2 * (flipped @ terms)
    return int((np.abs(sums) >= abs(total) - _TOLERANCE * np.abs(terms).sum()).sum())


def mcnemar(won: int, lost: int) -> float:
    """Exact and two-sided."""
    discordant = won + lost
    tail = sum(math.comb(discordant, k) for k in range(min(won, lost) + 1))
    return min(1.0, 2 * tail / (1 << discordant))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p values (1979), in the order given: of m sorted ones, the i-th smallest
    becomes max over j ≤ i of (m − j + 1) p_j, at most 1. To reject those of at most α keeps the
    chance of any false rejection among all at α."""
    adjusted, highest = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = highest
    return adjusted


class _Stratum(Bootstrap):
    """The resampled means themselves, for a mean over several strata."""

    def means(self, values: Floats) -> Floats:
        return self._weights @ values / len(values)


@lru_cache(maxsize=64)
def _stratum(count: int, seed: int) -> _Stratum:
    """Kept: drawing 2,000 resamples of some hundred samples takes longer than using them."""
    return _Stratum(count, seed=seed)


def _by_task(tasks: Sequence[str], values: Sequence[float]) -> list[Floats]:
    """By the tasks' names in order."""
    groups: dict[str, list[float]] = {task: [] for task in sorted(set(tasks))}
    for task, value in zip(tasks, values, strict=True):
        groups[task].append(value)
    return [np.array(own, dtype=np.float64) for own in groups.values()]


def _seed(seed: int, place: int) -> int:
    """Another for each stratum, or strata of one size would be drawn alike."""
    return int(np.random.SeedSequence((seed, place)).generate_state(1)[0])
