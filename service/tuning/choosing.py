"""What trials say: means with intervals, which candidates are worth their cost, which is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from service.tuning.measuring.bootstrap import Bootstrap, Comparison, Estimate, compare
from service.tuning.measuring.candidate import Candidate
from service.tuning.measuring.trial import Trial

SAME_COST = 1.02
"""Costs that differ by less are called the same: the shares of rows are rounded to whole rows."""


@dataclass(frozen=True)
class Summary:
    """A candidate over a number of prompts.

    Attributes:
        candidate: what was measured.
        trials: one a prompt.
        kl: mean KL per token of full prefill's answer, in nats.
        kl_first: mean KL of the first token.
        agreement: share of the answers' tokens that are its most likely ones.
        agree_first: the same for first tokens alone.
        same: share of prompts with the same greedy answer.
        operations: of the prefill, relative to full prefill.
        ttft: median of seconds relative to full prefill of the same prompt.
        seconds: median of the prefill.
        bytes: median of the stored KV of a prompt.
        kept: share of the KV entries held after an eviction.
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
    """Those that no cheaper one beats, from the cheapest to the most expensive."""
    return sorted(
        (s for s in summaries if not _beaten(s, summaries)), key=lambda s: (s.operations, s.kl.mean)
    )


def best_within(summaries: Sequence[Summary], operations: float) -> Summary:
    """The lowest mean KL among those that cost at most so many operations; there must be one."""
    allowed = [s for s in summaries if s.operations <= operations * SAME_COST]
    return min(allowed, key=lambda s: (s.kl.mean, s.operations))


def better_half(summaries: Sequence[Summary], least: int) -> list[Candidate]:
    """Half of the candidates, `least` at least: those that are beaten by the fewest others.

    All that lie on the frontier come first.
    """
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
    """Whether `other` costs no more and is nearer to full prefill."""
    return (
        other.operations <= s.operations * SAME_COST
        and other.kl.mean < s.kl.mean
        and other is not s
    )
