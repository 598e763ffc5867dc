"""Full prefill instead of a method, where that is not slower: of short prompts and small models.
What a prompt costs beside its operations differs by method, so the time of every kind of prefill
is learnt by itself; where no request needs one, full prefill is timed in spare time."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace

import torch

from service.worker.forward.chunk_prefill import ScratchKV
from service.worker.forward.prefill import prefill
from service.worker.layout import PromptLayout
from service.worker.loading.cost_model import CostModel
from service.worker.loading.estimates import ComputeEstimate
from service.worker.methods.bases.fusion import FusionMethod
from service.worker.methods.fusion.vanilla import Method as FullPrefill
from service.worker.methods.layer_view import PrefillResult
from service.worker.model.decoder import DecoderModel
from service.worker.model.flops import full_prefill
from service.worker.steps import Steps

Kind = type[FusionMethod]

# A kind is known after so many prefills; the first, which is left out, also warms caches.
KNOWN = 3
# After so many prompts whose method was turned down it is used once, so that its estimate follows
# what the machine does; after as many of a method full prefill is timed again.
RENEWED = 50
# Only what takes at most so many times as long as the method is timed again.
NEAR = 2.0
# Longer prompts are not timed: they would take much spare time, and memory beside the pool.
MOST_TOKENS = 1024


@dataclass
class PrefillTimes:
    """How long prefills of every kind take, and which of two kinds is faster."""

    device: str
    _known: dict[Kind, ComputeEstimate] = field(default_factory=dict)
    _seen: Counter[Kind] = field(default_factory=Counter)
    _without: Counter[Kind] = field(default_factory=Counter)  # prompts since the last of a kind

    def add(self, kind: Kind, flops: float, seconds: float) -> None:
        """Add a prefill that was measured."""
        self._seen[kind] += 1
        self._without[kind] = 0
        if self._seen[kind] > 1:
            self._known.setdefault(kind, ComputeEstimate(self.device)).add(flops, seconds)

    def passed_over(self, kind: Kind) -> None:
        """Note that a prompt could have been of this kind, and was not."""
        self._without[kind] += 1

    def full_is_faster(
        self, model: CostModel, decoder: DecoderModel, computed: frozenset[int]
    ) -> bool:
        """Return whether full prefill is expected to take no longer than a prompt's method."""
        kind = type(model.prompt.method)
        if self._without[kind] >= RENEWED:
            return False
        times = self._both(model, decoder, computed)
        return times is not None and times[0] <= times[1]

    def wants_full(self, model: CostModel, decoder: DecoderModel) -> bool:
        """Return whether a full prefill like that of this prompt should be timed in spare time."""
        if model.prompt.tokens > MOST_TOKENS:
            return False
        if self._seen[FullPrefill] < KNOWN:
            return True
        times = self._both(model, decoder, frozenset())
        renew = self._without[FullPrefill] >= RENEWED
        return renew and times is not None and times[0] <= NEAR * times[1]

    def _both(
        self, model: CostModel, decoder: DecoderModel, computed: frozenset[int]
    ) -> tuple[float, float] | None:
        """Return seconds of full prefill and of the method; None where one is not known."""
        kind = type(model.prompt.method)
        if min(self._seen[kind], self._seen[FullPrefill]) < KNOWN:
            return None
        own, full = self._known[kind], self._known[FullPrefill]
        slower = 2.0 if model.prompt.crowded else 1.0
        of_method = replace(
            model, overhead_s=own.overhead_s * slower, flop_s=own.flop_s * slower
        ).seconds(computed)
        flops = full_prefill(decoder, model.prompt.tokens)
        return (full.overhead_s + full.flop_s * flops) * slower, of_method


class FullPrefillTimer:
    """Times full prefills of random tokens in spare time, one step at a time."""

    def __init__(self, decoder: DecoderModel, times: PrefillTimes) -> None:
        self._decoder, self._times = decoder, times
        self._steps: Steps[PrefillResult] | None = None
        self._seconds = 0.0

    def time(self, tokens: int) -> None:
        """Time a prompt of so many tokens, unless another one is being timed."""
        if self._steps is None:
            random = torch.Generator().manual_seed(0)
            ids = torch.randint(self._decoder.vocabulary, (tokens,), generator=random).tolist()
            layout = PromptLayout.of(ids, [], [], uncached=[True], device=self._decoder.device)
            scratch = ScratchKV(self._decoder, tokens)
            self._steps = prefill(self._decoder, layout, [None], FullPrefill(), scratch)
            self._seconds = 0.0

    @property
    def idle(self) -> bool:
        return self._steps is None

    def advance(self) -> None:
        """Run one step."""
        assert self._steps is not None
        started = time.monotonic()
        try:
            next(self._steps)
            self._seconds += time.monotonic() - started
        except StopIteration as end:
            self._steps = None
            seconds = self._seconds + time.monotonic() - started
            self._times.add(FullPrefill, end.value.flops, seconds)

    def fail_current(self, error: Exception) -> None:
        """Give up the prompt, because `advance` raised this error."""
        self._steps = None
