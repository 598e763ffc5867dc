"""The planner: loads or recomputes each document, whichever brings the first token sooner.

It decides when a request's chunks have been found, and again whenever the prefill has to wait: a
load that turns out to be slow is given up, and its document is computed. It learns how long reads
and prefills take by measuring them. Chunks in the memory tier are always used.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from service.worker.methods.bases.fusion import FusionMethod
from service.worker.model.decoder import DecoderModel
from service.worker.planner.cost_model import (
    Loadable,
    PromptModel,
    cheapest,
    hidden_ratio,
)
from service.worker.planner.estimates import ComputeEstimate, TierEstimates

FASTER = "planner: recompute is faster"
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


@dataclass(frozen=True)
class Waiting:
    """A segment that a prompt waits for.

    Attributes:
        tokens: tokens of the segment.
        tier: where it is stored.
        nbytes: bytes still to be read.
        parts: number of parts in which these are read.
        quiet_s: seconds since its last part arrived, or since it was requested; 0 if it was not
            requested yet.
        turn_bytes: bytes that its tier had to read at that time, up to and with its next part.
        prefix: tokens that stand before it when its chunk is computed by itself.
    """

    tokens: int
    tier: str
    nbytes: int
    parts: int = 1
    quiet_s: float = 0.0
    turn_bytes: float = 0.0
    prefix: int = 0


@dataclass(frozen=True)
class Prompt:
    """What the planner knows about a prompt that waits for segments.

    Attributes:
        tokens: tokens of the whole prompt.
        question: tokens of the question.
        method: the prompt's fusion method.
        uncached_tokens: tokens of segments that must be computed.
        documents: tokens of each document that is already loaded, or whose chunk will be computed
            by itself.
        as_stored: whether what is not loaded is computed by itself, not with the prompt.
        alone: tokens of each chunk that must be computed by itself, and of its prefix.
        others_bytes: by tier, bytes that other prompts are still reading.
        exact_layers_done: number of first layers that have already been computed with every row.
        crowded: whether other requests decode meanwhile, which halves the speed of prefill.
    """

    tokens: int
    question: int
    method: FusionMethod
    uncached_tokens: int = 0
    documents: Sequence[int] = ()
    as_stored: bool = False
    alone: Sequence[tuple[int, int]] = ()
    others_bytes: Mapping[str, float] = field(default_factory=dict)
    exact_layers_done: int = 0
    crowded: bool = False


class Planner:
    """Makes the decisions of one engine. They can be requested from several threads.

    Attributes:
        deciding: whether requests are planned by it; if not, everything that is stored is loaded.
        tiers: estimates of read times.
        compute: estimate of prefill times.
    """

    def __init__(
        self, decoder: DecoderModel, tiers: TierEstimates, *, deciding: bool = True
    ) -> None:
        self._decoder = decoder
        self.deciding = deciding
        self.tiers = tiers
        self.compute = ComputeEstimate(decoder.device.type)
        self._lock = threading.Lock()
        self._counts = Counter({"load": 0, "recompute": 0, "late": 0, "lost": 0})

    def recompute(self, prompt: Prompt, waiting: Sequence[Waiting]) -> frozenset[int]:
        """Decides which segments are computed instead of loaded.

        Returns:
            Indices into `waiting`.
        """
        model = self._model(prompt, waiting)
        if sum(load.left_s for load in model.loads) < WORTH_S:
            return frozenset()
        return cheapest(model)

    def ratio(self, prompt: Prompt, waiting: Sequence[Waiting]) -> float:
        """The repair ratio for `ratio: auto`: the method's own, or more if loading hides it."""
        return hidden_ratio(self._model(prompt, waiting), MOST_RATIO)

    def forecast(self, prompt: Prompt, loads: Sequence[Waiting]) -> tuple[float, float]:
        """Expected seconds to the first token, and FLOPs, if these segments are loaded."""
        model = self._model(prompt, loads)
        return model.seconds(), model.flops()

    def compute_s(self, flops: float, *, crowded: bool = False) -> float:
        """Expected seconds of a prefill of so many FLOPs that loads nothing."""
        seconds = self.compute.overhead_s + self.compute.flop_s * flops
        return 2.0 * seconds if crowded else seconds

    def look_again_s(self, prompt: Prompt) -> float:
        """Seconds to wait for a part before deciding again: a fraction of a full prefill's time."""
        everything = replace(
            prompt,
            uncached_tokens=prompt.tokens - prompt.question,
            documents=(),
            as_stored=False,
            alone=(),
        )
        full_s = self._model(everything, []).seconds()
        return max(LATE_S / 2, full_s / (2 * LATE_FACTOR))

    def finished(self, flops: float, seconds: float, plans: Iterable[str]) -> None:
        """Learns from a finished prefill, and counts what was planned for its segments.

        Args:
            flops: its floating-point operations.
            seconds: how long they took, without waiting.
            plans: of its segments, "load" or "recompute"; empty where there was no choice.
        """
        self.compute.add(flops, seconds)
        for plan in filter(None, plans):
            self.count(plan)

    def count(self, decision: str, times: int = 1) -> None:
        """Counts a decision; `counts` lists the names."""
        with self._lock:
            self._counts[decision] += times

    @property
    def counts(self) -> dict[str, int]:
        """Number of segments by decision.

        `load` and `recompute` are all segments; `late` are those of `recompute` whose load was
        given up, `lost` those of `load` that were damaged or missing when they were needed.
        """
        with self._lock:
            return dict(self._counts)

    def _model(self, prompt: Prompt, waiting: Sequence[Waiting]) -> PromptModel:
        slower = 2.0 if prompt.crowded else 1.0
        return PromptModel(
            shape=self._decoder,
            tokens=prompt.tokens,
            question=prompt.question,
            loads=[self._loadable(one, waiting) for one in waiting],
            method=prompt.method,
            overhead_s=self.compute.overhead_s * slower,
            flop_s=self.compute.flop_s * slower,
            uncached_tokens=prompt.uncached_tokens,
            documents=prompt.documents,
            as_stored=prompt.as_stored,
            alone=prompt.alone,
            waiting_s={t: self.tiers.seconds(t, n, 0) for t, n in prompt.others_bytes.items()},
            exact_layers_done=prompt.exact_layers_done,
        )

    def _loadable(self, one: Waiting, every: Collection[Waiting]) -> Loadable:
        left_s = self.tiers.seconds(one.tier, one.nbytes, one.parts)
        if one.quiet_s > 0:
            # In one turn the tier reads the next part of every segment; some of these parts may
            # have arrived by now.
            sharing = sum(other.tier == one.tier and other.nbytes > 0 for other in every)
            turn_s = left_s / max(1, one.parts) * sharing
            turn_s = max(turn_s, self.tiers.seconds(one.tier, one.turn_bytes))
            due_s = turn_s * TRUST if self.tiers.measured(one.tier) else 0.0
            # This segment's share of what the tier has read of the current turn, if all segments
            # are served equally.
            left_s -= min(one.quiet_s, turn_s) / max(1, sharing)
            left_s = max(0.0, left_s, (one.quiet_s - max(due_s, LATE_S)) * LATE_FACTOR)
        return Loadable(one.tokens, one.tier, left_s, one.parts, one.prefix)
