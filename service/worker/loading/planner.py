"""The planner: loads or recomputes each document, whichever brings the first token sooner.

It decides when a request's chunks have been found, and again whenever the prefill has to wait.
Chunks in the memory tier are always used, unless full prefill of the whole prompt is not slower, as
with short prompts and small models, and the request names no method. What a prompt costs beside its
operations differs by method, so the time of every kind of prefill is learnt by itself.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch

from kvstitch.service.worker.forward.chunk_prefill import ScratchKV
from kvstitch.service.worker.forward.kv_placement import LayerViews
from kvstitch.service.worker.forward.prefill import prefill
from kvstitch.service.worker.layout import Prefix, PromptLayout
from kvstitch.service.worker.loading.cost_model import (
    CostModel,
    Line,
    LoadableSegment,
    Prompt,
    TierEstimates,
    cheapest,
    hidden_ratio,
)
from kvstitch.service.worker.methods.bases.dense import DenseMethod
from kvstitch.service.worker.methods.bases.fusion import FusionMethod
from kvstitch.service.worker.methods.fusion.question_scout import Method as QuestionScout
from kvstitch.service.worker.methods.fusion.vanilla import Method as FullPrefill
from kvstitch.service.worker.methods.layer_view import PrefillResult
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.model_facts import full_prefill
from kvstitch.service.worker.steps import Steps

Kind = type[FusionMethod]

# A kind is known after so many prefills; the first, which is left out, also warms caches.
KNOWN = 3
# After so many prompts whose method was turned down it is used once, so that its estimate follows
# what the machine does; after as many of a method full prefill is timed again.
RENEWED = 50
# Weight of the last measurement of a size beside those before it.
NEWEST = 0.3
# Only what takes at most so many times as long as the method is timed again.
NEAR = 2.0
# Longer prompts are not timed: they would take much spare time, and memory beside the pool.
MOST_TOKENS = 1024
# Tokens of made-up prompts, about as short as stitching stops to pay, and of their question.
PROBES, PROBED_QUESTION = (48, 48, 160), 24


@dataclass
class SecondsBySize:
    """How long prefills of one kind take by their operations: a point for every power of two, and
    lines in between, because long prompts tell little of short ones."""

    _points: dict[int, tuple[float, float]] = field(default_factory=dict)

    def add(self, flops: float, seconds: float) -> None:
        size = math.frexp(flops)[1]
        x, y = self._points.get(size, (flops, seconds))
        self._points[size] = x + NEWEST * (flops - x), y + NEWEST * (seconds - y)

    def at(self, flops: float) -> float:
        """Return the seconds of so many operations."""
        known = sorted(self._points.values())
        place = bisect(known, (flops,))
        a, b = (place - 1, place) if 0 < place < len(known) else (0, len(known) - 1)
        (least, first), (most, last) = known[a], known[b]
        if a == b:
            return first * flops / least
        return max(0.0, first + (last - first) * (flops - least) / (most - least))


@dataclass
class PrefillTimes:
    """How long prefills of every kind take, and which of two kinds is faster."""

    _known: dict[Kind, SecondsBySize] = field(default_factory=dict)
    _seen: Counter[Kind] = field(default_factory=Counter)
    _without: Counter[Kind] = field(default_factory=Counter)  # prompts since the last of a kind

    def add(self, kind: Kind, flops: float, seconds: float) -> None:
        self._seen[kind] += 1
        self._without[kind] = 0
        if self._seen[kind] > 1:
            self._known.setdefault(kind, SecondsBySize()).add(flops, seconds)

    def measured(self, *kinds: Kind) -> bool:
        """Return whether it is known how long prefills of these kinds take."""
        return all(self._seen[kind] >= KNOWN for kind in kinds)

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
        times = self._estimate_both(model, decoder, computed)
        return times is not None and times[0] <= times[1]

    def wants_full(self, model: CostModel, decoder: DecoderModel) -> bool:
        """Return whether a full prefill like that of this prompt should be timed in spare time."""
        if model.prompt.tokens > MOST_TOKENS:
            return False
        if not self.measured(FullPrefill):
            return True
        times = self._estimate_both(model, decoder, frozenset())
        renew = self._without[FullPrefill] >= RENEWED
        return renew and times is not None and times[0] <= NEAR * times[1]

    def _estimate_both(
        self, model: CostModel, decoder: DecoderModel, computed: frozenset[int]
    ) -> tuple[float, float] | None:
        """Return seconds of full prefill and of the method; None where one is not known."""
        kind = type(model.prompt.method)
        if not self.measured(kind, FullPrefill):
            return None
        own, full = self._known[kind], self._known[FullPrefill]
        slower = 2.0 if model.prompt.crowded else 1.0
        flop_s = own.at(model.flops()) / model.flops()
        of_method = replace(model, overhead_s=0.0, flop_s=flop_s * slower).seconds(computed)
        flops = full_prefill(decoder, model.prompt.tokens)
        return full.at(flops) * slower, of_method


class PrefillTimer:
    """Times prefills of random tokens in spare time, one step at a time."""

    def __init__(self, decoder: DecoderModel, times: PrefillTimes) -> None:
        self._decoder, self._times = decoder, times
        self._due: deque[tuple[DenseMethod, int]] = deque()
        self._steps: Steps[PrefillResult] | None = None
        self._seconds = 0.0

    def time(self, tokens: int) -> None:
        """Time full prefill of so many tokens, unless another prompt is being timed."""
        if self.idle:
            self._due.append((FullPrefill(), tokens))

    def probe(self) -> None:
        """Time short prompts both ways, so that this is known before the first question."""
        self._due.extend((kind(), n) for n in PROBES for kind in (FullPrefill, QuestionScout))

    @property
    def idle(self) -> bool:
        return self._steps is None and not self._due

    def advance(self) -> None:
        """Run one step."""
        started = time.monotonic()
        method, tokens = self._due[0]
        if self._steps is None:
            self._steps, self._seconds = self._prefill(method, tokens), 0.0
        try:
            next(self._steps)
            self._seconds += time.monotonic() - started
        except StopIteration as end:
            seconds = self._seconds + time.monotonic() - started
            self._times.add(type(method), end.value.flops, seconds)
            self.fail_current(end)

    def fail_current(self, error: Exception) -> None:
        """Give up the prompt, because `advance` raised this error, or it is done."""
        self._steps = None
        self._due.popleft()

    def _prefill(self, method: DenseMethod, tokens: int) -> Steps[PrefillResult]:
        decoder, random = self._decoder, torch.Generator().manual_seed(0)
        ids = torch.randint(decoder.vocabulary, (tokens,), generator=random).tolist()
        document, stored = ids[:-PROBED_QUESTION], None
        if not isinstance(method, FullPrefill):
            shape = len(document), decoder.kv_heads, decoder.head_dim
            kv = torch.zeros(shape, dtype=decoder.dtype)
            stored = LayerViews([(kv, kv)] * decoder.layers)
        layout = PromptLayout.of(
            [], [document], ids[-PROBED_QUESTION:], uncached=[True, stored is None],
            prefixes=[Prefix((0,), exact=False)], device=decoder.device,
        )  # fmt: skip
        return prefill(decoder, layout, [None, stored], method, ScratchKV(decoder, tokens))


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
        self.compute = Line.of_prefills(decoder.device.type)
        self.times = PrefillTimes()
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
        """Return the repair ratio for `ratio: auto`, more than the method's if loading hides it."""
        return hidden_ratio(self.cost_model(prompt), MOST_RATIO)

    def forecast(self, prompt: Prompt) -> tuple[float, float]:
        """Return expected seconds to the first token, and FLOPs, if all its loads are loaded."""
        model = self.cost_model(prompt)
        return model.seconds(), model.flops()

    def compute_s(self, flops: float, *, crowded: bool = False) -> float:
        """Return the expected seconds of a prefill of so many FLOPs that loads nothing."""
        return self.compute.at(flops) * (2.0 if crowded else 1.0)

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
            overhead_s=self.compute.overhead * slower,
            flop_s=self.compute.slope * slower,
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
