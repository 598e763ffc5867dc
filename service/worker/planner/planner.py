"""Load or recompute: per document, whatever brings the first token sooner.

Decides when a request's chunks are found, and again whenever its prefill has to wait: a load that
turns out slow is given up and its document computed. Learns what reads and computing cost from
those that happen. Everything in the memory tier is always used. Knows no store and no scheduler.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from service.worker.loading.estimates import ComputeEstimate, TierEstimates
from service.worker.loading.segment_load import Load
from service.worker.methods.bases.fusion import FusionMethod
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.planner.cost_model import (
    Loadable,
    PromptModel,
    cheapest,
    hidden_ratio,
)

FASTER = "planner: recompute is faster"
LATE = "planner: the load was late, recompute is faster"

# Loads expected to take less than this together are not worth a decision.
WORTH_S = 0.01
# Past its expected time a load is taken to need this many times what it is late: it is given up
# when it is late by 1/25 of what can still be saved, so that waiting for it in vain costs 4 %.
LATE_FACTOR = 25.0
# Nothing is late before this, nor is a decision taken more often.
LATE_S = 0.05
# A measured tier may take this many times what it is expected to before it is late.
TRUST = 1.5
# `ratio: auto` recomputes at most this share.
MOST_RATIO = 0.5


@dataclass(frozen=True)
class Waiting:
    """A segment to load.

    Attributes:
        tokens: of the segment.
        nbytes: bytes still to be read, in `parts` pieces.
        quiet_s: seconds since the last piece came, or since it was asked for; 0: not asked for yet.
        turn_bytes: what its tier had to read then, up to and with the next piece.
    """

    tokens: int
    tier: str
    nbytes: int
    parts: int = 1
    quiet_s: float = 0.0
    turn_bytes: float = 0.0


@dataclass(frozen=True)
class Prompt:
    """What is known of a prompt that waits for segments.

    Attributes:
        tokens: of the whole prompt; question: of its question.
        uncached_tokens: of segments that must be computed.
        documents: tokens of each document that needs no waiting for.
        others_bytes: by tier, bytes that other prompts are still reading.
        exact_layers_done: first layers that have been computed with every row already.
        crowded: others decode meanwhile, which halves the speed of computing.
    """

    tokens: int
    question: int
    method: FusionMethod
    uncached_tokens: int = 0
    documents: Sequence[int] = ()
    others_bytes: Mapping[str, float] = field(default_factory=dict)
    exact_layers_done: int = 0
    crowded: bool = False


class Planner:
    """One per engine. Decisions may be asked for from several threads."""

    def __init__(self, adapter: DecoderAdapter, tiers: TierEstimates) -> None:
        self._adapter = adapter
        self.tiers = tiers
        self.compute = ComputeEstimate(adapter.device.type)
        self._lock = threading.Lock()
        self._counts = Counter({"load": 0, "recompute": 0, "late": 0, "lost": 0})

    def recompute(self, prompt: Prompt, waiting: Sequence[Waiting]) -> frozenset[int]:
        """Numbers of the segments that are computed sooner than they are loaded."""
        model = self._model(prompt, waiting)
        if sum(load.left_s for load in model.loads) < WORTH_S:
            return frozenset()
        return cheapest(model)

    def ratio(self, prompt: Prompt, waiting: Sequence[Waiting]) -> float:
        """For `ratio: auto`: the method's own, or more where loading hides it."""
        return hidden_ratio(self._model(prompt, waiting), MOST_RATIO)

    def forecast(self, prompt: Prompt, loads: Sequence[Waiting]) -> tuple[float, float]:
        """Seconds to the first token, and operations, if these are loaded."""
        model = self._model(prompt, loads)
        return model.seconds(), model.flops()

    def compute_s(self, flops: float, *, crowded: bool = False) -> float:
        """Of a prompt that loads nothing."""
        seconds = self.compute.overhead_s + self.compute.flop_s * flops
        return 2.0 * seconds if crowded else seconds

    def look_again_s(self, prompt: Prompt) -> float:
        """How long to wait for a part before deciding anew: a fraction of a cold prefill."""
        everything = replace(prompt, uncached_tokens=prompt.tokens - prompt.question, documents=())
        full_s = self._model(everything, []).seconds()
        return max(LATE_S / 2, full_s / (2 * LATE_FACTOR))

    def finished(self, flops: float, seconds: float, segments: Sequence[Load | None]) -> None:
        """A prompt is in place: what computing it took, and what was planned for it."""
        self.compute.add(flops, seconds)
        for segment in segments:
            if segment is not None and segment.plan:
                self.count(segment.plan)

    def count(self, decision: str, times: int = 1) -> None:
        with self._lock:
            self._counts[decision] += times

    @property
    def counts(self) -> dict[str, int]:
        """Segments by what was done: load, recompute (late: of these, after waiting for a load);
        lost: of the loads, those bad or gone when they were needed."""
        with self._lock:
            return dict(self._counts)

    def _model(self, prompt: Prompt, waiting: Sequence[Waiting]) -> PromptModel:
        slower = 2.0 if prompt.crowded else 1.0
        return PromptModel(
            shape=self._adapter,
            tokens=prompt.tokens,
            question=prompt.question,
            loads=[self._loadable(one, waiting) for one in waiting],
            method=prompt.method,
            overhead_s=self.compute.overhead_s * slower,
            flop_s=self.compute.flop_s * slower,
            uncached_tokens=prompt.uncached_tokens,
            documents=prompt.documents,
            waiting_s={t: self.tiers.seconds(t, n, 0) for t, n in prompt.others_bytes.items()},
            exact_layers_done=prompt.exact_layers_done,
        )

    def _loadable(self, one: Waiting, all_of_them: Collection[Waiting]) -> Loadable:
        left = self.tiers.seconds(one.tier, one.nbytes, one.parts)
        if one.quiet_s > 0:
            # Parts of all documents take turns; those ahead of it may be there by now.
            beside = sum(other.tier == one.tier and other.nbytes > 0 for other in all_of_them)
            turn = left / max(1, one.parts) * beside
            turn = max(turn, self.tiers.seconds(one.tier, one.turn_bytes))
            due = turn * TRUST if self.tiers.measured(one.tier) else 0.0
            # Of the turn that is being read now this much is behind it, if all are served alike.
            left -= min(one.quiet_s, turn) / max(1, beside)
            left = max(0.0, left, (one.quiet_s - max(due, LATE_S)) * LATE_FACTOR)
        return Loadable(one.tokens, one.tier, left, one.parts)
