"""Which `exact_below` keeps a promise: so many answers are full prefill's.

An answer that differs becomes full prefill's where `exact_below` is greater than its least lead
(`Trial.lead`), and every answer with a lesser lead is computed in full, whether it differs or not.
So a promise has a price for each configuration, and the cheapest keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from kvstitch_tune.statistics import Bootstrap, Estimate, Summary
from kvstitch_tune.trial import Trial

STEP = 0.01
"""Of `exact_below`, in nats."""


@dataclass(frozen=True)
class Promise:
    """What one configuration needs to answer as full prefill does.

    Attributes:
        asked: Share of answers that are to be full prefill's.
        summary: The configuration.
        exact_below: Nats below which full prefill takes over.
        same: Share of prompts that are answered so, each judged by the value that the others need.
        taken_over: Share of prompts that full prefill takes over.
        operations: Of prefills and of what is computed in full, relative to full prefill.
    """

    asked: float
    summary: Summary
    exact_below: float
    same: Estimate
    taken_over: float
    operations: float

    @property
    def pays(self) -> bool:
        """Whether it takes less than full prefill of everything, which keeps any promise."""
        return self.operations < 1


def cheapest(asked: float, summaries: Sequence[Summary], bootstrap: Bootstrap) -> Promise:
    """Return the promise of fewest operations; `summaries` are of the same prompts, two at least.
    Where KV is evicted or only in part there, `exact_below` does nothing."""
    whole = [s for s in summaries if not s.candidate.eviction and s.candidate.holds_all]
    kept = [_promise(asked, s, bootstrap) for s in whole]
    return min(kept, key=lambda promise: promise.operations)


def _promise(asked: float, summary: Summary, bootstrap: Bootstrap) -> Promise:
    needed = [_needed(trial) for trial in summary.trials]
    others = [_least(asked, needed[:i] + needed[i + 1 :]) for i in range(len(needed))]
    kept = [float(own <= found) for own, found in zip(needed, others, strict=True)]
    below = _least(asked, needed)
    taken = fmean(float(trial.lead < below) for trial in summary.trials)
    operations = summary.operations + taken
    return Promise(asked, summary, below, bootstrap.mean(kept), taken, operations)


def _needed(trial: Trial) -> float:
    """Return the least step of `exact_below` with which this answer is full prefill's."""
    return 0.0 if trial.same else (math.floor(trial.lead / STEP) + 1) * STEP


def _least(asked: float, needed: Sequence[float]) -> float:
    """Return the least value that is enough for so large a share."""
    return round(sorted(needed)[math.ceil(asked * len(needed)) - 1], 2)
