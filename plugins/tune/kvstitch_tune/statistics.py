"""Means over prompts with 95 % intervals, by the percentile bootstrap over prompts.

Prompts are resampled as a whole, so a difference between two configurations is resampled in pairs.

What trials say: means with intervals, which candidates are worth their cost, which is best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from kvstitch_tune.candidates import Candidate
from kvstitch_tune.trial import Trial

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


SAME_COST = 1.02
"""Costs that differ by less are called the same: the shares of rows are rounded to whole rows."""


@dataclass(frozen=True)
class Summary:
    """A candidate over a number of prompts.

    Attributes:
        candidate: What was measured.
        trials: One a prompt.
        kl: Mean KL per token of full prefill's answer, in nats.
        kl_first: Mean KL of the first token.
        agreement: Share of the answers' tokens that are its most likely ones.
        agree_first: The same for first tokens alone.
        same: Share of prompts with the same greedy answer.
        operations: Of the prefill, relative to full prefill.
        ttft: Median of seconds relative to full prefill of the same prompt.
        seconds: Median of the prefill.
        bytes: Median of the stored KV of a prompt.
        kept: Share of the KV entries held after an eviction.
    """

    candidate: Candidate
    trials: Sequence[Trial]
    kl: Estimate
    kl_first: Estimate
    agreement: Estimate
    agree_first: Estimate
    same: Estimate
    operations: float
    ttft: float
    seconds: float
    bytes: float
    kept: float

    @classmethod
    def of(cls, candidate: Candidate, trials: Sequence[Trial], bootstrap: Bootstrap) -> Summary:
        return cls(
            candidate,
            trials,
            bootstrap.mean([t.kl for t in trials]),
            bootstrap.mean([t.kl_first for t in trials]),
            bootstrap.mean([t.agreement for t in trials]),
            bootstrap.mean([t.agree_first for t in trials]),
            bootstrap.mean([t.same for t in trials]),
            fmean(t.operations for t in trials),
            median(t.seconds / t.full_seconds for t in trials),
            median(t.seconds for t in trials),
            median(t.bytes for t in trials),
            fmean(t.kept for t in trials),
        )


def versus(ours: Summary, theirs: Summary, bootstrap: Bootstrap) -> Comparison:
    """Difference of the mean KL per token, ours minus theirs, in pairs."""
    return compare(bootstrap, [t.kl for t in ours.trials], [t.kl for t in theirs.trials])


def frontier(summaries: Sequence[Summary]) -> list[Summary]:
    """Return those that no cheaper one beats, from the cheapest to the most expensive."""
    return sorted(
        (s for s in summaries if not _beaten(s, summaries)), key=lambda s: (s.operations, s.kl.mean)
    )


def best_within(summaries: Sequence[Summary], operations: float) -> Summary:
    """The lowest mean KL among those that cost at most so many operations; there must be one."""
    allowed = [s for s in summaries if s.operations <= operations * SAME_COST]
    return min(allowed, key=lambda s: (s.kl.mean, s.operations))


def better_half(summaries: Sequence[Summary], least: int) -> list[Candidate]:
    """Return half of the candidates, at least `least`: those beaten by the fewest others."""
    ranked = sorted(
        summaries,
        key=lambda s: (
            sum(_beats(other, s) for other in summaries),
            s.kl.mean,
        ),
    )
    on_frontier = len(frontier(summaries))
    keep = max(least, min(len(ranked), on_frontier), (len(ranked) + 1) // 2)
    kept = {s.candidate.key for s in ranked[:keep]}
    return [s.candidate for s in summaries if s.candidate.key in kept]


def _beaten(s: Summary, summaries: Sequence[Summary]) -> bool:
    return any(_beats(other, s) for other in summaries)


def _beats(other: Summary, s: Summary) -> bool:
    """Return whether `other` costs no more and is nearer to full prefill."""
    return (
        other.operations <= s.operations * SAME_COST
        and other.kl.mean < s.kl.mean
        and other is not s
    )
