"""Means over prompts with 95 % intervals, by the percentile bootstrap over prompts.

Prompts are resampled as a whole, so a difference between two configurations is resampled in pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval; all NaN if there are no values."""

    mean: float
    low: float
    high: float


class Bootstrap:
    """Resamples `count` prompts in the same way for every quantity, so that they stay paired."""

    def __init__(self, count: int, *, seed: int = 0) -> None:
        source = np.random.default_rng(seed)
        even = np.full(count, 1.0 / count)
        # For each resample, how often each prompt is drawn.
        self._weights = source.multinomial(count, even, size=RESAMPLES).astype(np.float64)

    def mean(self, values: Sequence[float | None]) -> Estimate:
        """Mean of one value per prompt; None values are left out."""
        known = np.array([v is not None for v in values])
        if not known.any():
            return Estimate(float("nan"), float("nan"), float("nan"))
        filled = np.array([0.0 if v is None else float(v) for v in values])
        drawn = self._weights @ known
        means = (self._weights @ filled)[drawn > 0] / drawn[drawn > 0]
        low, high = np.percentile(means, (2.5, 97.5))
        return Estimate(float(filled[known].mean()), float(low), float(high))


@dataclass(frozen=True)
class Comparison:
    """One configuration minus another, prompt by prompt; for an error, negative is better.

    `won` is the share of prompts with a lower value, among those on which the two differ.
    """

    difference: Estimate
    won: float


def compare(bootstrap: Bootstrap, ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    differing = [d for d in differences if d]
    won = sum(d < 0 for d in differing) / len(differing) if differing else 0.5
    return Comparison(bootstrap.mean(differences), won)
