"""The planner: loads or recomputes each document, whichever brings the first token sooner.

It decides when a request's chunks have been found, and again whenever the prefill has to wait.
Chunks in the memory tier are always used, unless full prefill of the whole prompt is not slower and
the request names no method.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from service.worker.loading.cost_model import (
    CostModel,
    LoadableSegment,
    Prompt,
    cheapest,
    hidden_ratio,
)
from service.worker.loading.estimates import ComputeEstimate, TierEstimates
from service.worker.loading.full_prefill import PrefillTimes
from service.worker.methods.bases.fusion import FusionMethod
from service.worker.methods.fusion.vanilla import Method as FullPrefill
from service.worker.model.decoder import DecoderModel

FASTER = "planner: recompute is faster"
WHOLE = "planner: full prefill is not slower"
LATE = "planner: the load was late, recompute is faster"

# If all loads together are expected to take less than this, they are not worth a decision.
WORTH_S = 0.01
# A load that is late is expected to need this many times its delay. So it is given up when it is
# late by 1/25 of the time that recomputing can still save, and waiting in vain costs 4 %.
LATE_FACTOR = 25.0
# No load is late before this many seconds, and decisions are at least half of it apart.
LATE_S = 0.05
# Factor by which a load from a measured tier may exceed its expected time before it is late.
TRUST = 1.5
# The largest repair ratio that `ratio: auto` chooses.
MOST_RATIO = 0.5


class Planner:
    """Makes the decisions of one engine. They can be requested from several threads."""

    def __init__(
        self, decoder: DecoderModel, tiers: TierEstimates, *, deciding: bool = True
    ) -> None:
        self._decoder = decoder
        # whether requests are planned by it; if not, everything that is stored is loaded
        self.deciding = deciding
        self.tiers = tiers
        self.compute = ComputeEstimate(decoder.device.type)
        self.times = PrefillTimes(decoder.device.type)
        self._lock = threading.Lock()
        self._counts = Counter({"load": 0, "recompute": 0, "late": 0, "lost": 0})

    def recompute(self, prompt: Prompt) -> frozenset[int]:
        """Return the indices of `prompt.loads` that are computed instead of loaded."""
        model = self.cost_model(prompt)
        return cheapest(model) if sum(model.left_s) >= WORTH_S else frozenset()

    def whole(self, prompt: Prompt, computed: frozenset[int] = frozenset()) -> bool:
        """Return whether full prefill is not slower than computing these of `prompt.loads`."""
        return self.times.full_is_faster(self.cost_model(prompt), self._decoder, computed)

    def wants_full(self, prompt: Prompt) -> bool:
        """Return whether a full prefill like this prompt's should be timed in spare time."""
        return self.times.wants_full(self.cost_model(prompt), self._decoder)

    def ratio(self, prompt: Prompt) -> float:
        """Return the repair ratio for `ratio: auto`: the method's own, or more if loading hides
        it."""
        return hidden_ratio(self.cost_model(prompt), MOST_RATIO)

    def forecast(self, prompt: Prompt) -> tuple[float, float]:
        """Return expected seconds to the first token, and FLOPs, if all its loads are loaded."""
        model = self.cost_model(prompt)
        return model.seconds(), model.flops()

    def compute_s(self, flops: float, *, crowded: bool = False) -> float:
        """Return the expected seconds of a prefill of so many FLOPs that loads nothing."""
        seconds = self.compute.overhead_s + self.compute.flop_s * flops
        return 2.0 * seconds if crowded else seconds

    def look_again_s(self, prompt: Prompt) -> float:
        """Return seconds to wait for a part before deciding again: a fraction of a full prefill."""
        everything = replace(
            prompt,
            loads=(),
            uncached_tokens=prompt.tokens - prompt.question,
            documents=(),
            as_stored=False,
            alone=(),
        )
        full_s = self.cost_model(everything).seconds()
        return max(LATE_S / 2, full_s / (2 * LATE_FACTOR))

    def finished(
        self,
        flops: float,
        seconds: float,
        plans: Iterable[str],
        kind: type[FusionMethod] | None = None,
        *,
        instead_of: type[FusionMethod] | None = None,
    ) -> None:
        """Learn from a finished prefill, which took so many seconds without waiting, and count
        what was planned for its segments. `kind` is the method that computed it, None if it also
        did what its kind does not; `instead_of` is the method that the planner turned down for
        it."""
        self.compute.add(flops, seconds)
        if kind is not None:
            self.times.add(kind, flops, seconds)
            other = FullPrefill if instead_of is None else instead_of
            if other is not kind:
                self.times.passed_over(other)
        for plan in filter(None, plans):
            self.count(plan)

    def count(self, decision: str) -> None:
        """Count a decision; `counts` lists the names."""
        with self._lock:
            self._counts[decision] += 1

    @property
    def counts(self) -> dict[str, int]:
        """Number of segments by decision: `late` are those of `recompute` whose load was given
        up, `lost` those of `load` that were damaged or missing when they were needed."""
        with self._lock:
            return dict(self._counts)

    def cost_model(self, prompt: Prompt) -> CostModel:
        """Return what this prompt's loads and computation are expected to take."""
        slower = 2.0 if prompt.crowded else 1.0
        return CostModel(
            prompt,
            self._decoder,
            overhead_s=self.compute.overhead_s * slower,
            flop_s=self.compute.flop_s * slower,
            left_s=[self._left_s(load, prompt) for load in prompt.loads],
            others_s={t: self.tiers.seconds(t, n, 0) for t, n in prompt.others_bytes.items()},
        )

    def _left_s(self, load: LoadableSegment, prompt: Prompt) -> float:
        """Return the seconds that a load's tier still needs for it."""
        left_s = self.tiers.seconds(load.tier, load.nbytes, load.parts)
        if load.quiet_s > 0:
            # In one turn the tier reads the next part of every segment; some of these parts may
            # have arrived by now.
            sharing = sum(other.tier == load.tier and other.nbytes > 0 for other in prompt.loads)
            turn_s = left_s / max(1, load.parts) * sharing
            turn_s = max(turn_s, self.tiers.seconds(load.tier, load.turn_bytes))
            due_s = turn_s * TRUST if self.tiers.measured(load.tier) else 0.0
            # This segment's share of what the tier has read of the current turn, if all segments
            # are served equally.
            left_s -= min(load.quiet_s, turn_s) / max(1, sharing)
            left_s = max(0.0, left_s, (load.quiet_s - max(due_s, LATE_S)) * LATE_FACTOR)
        return left_s
