"""What the first token of one prompt is expected to take, given which segments are computed.

The method tells what it computes, phase by phase (`FusionMethod.phases`). Loads of one tier take
turns, part by part; different tiers are read side by side. A layer begins when its part is there
and the layer before it is done.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from service.worker.core.flops import FlopCount, Shape
from service.worker.methods.bases.cost import Phase, PromptShape, total_flops
from service.worker.methods.bases.fusion import FusionMethod


@dataclass(frozen=True)
class Loadable:
    """A stored segment, or what is left of one that is being read.

    Attributes:
        tokens: of the segment.
        left_s: seconds that its tier needs for what is left.
        parts: pieces in which it arrives.
    """

    tokens: int
    tier: str
    left_s: float
    parts: int = 1


@dataclass(frozen=True, kw_only=True)
class PromptModel:
    """One prompt.

    Attributes:
        shape: sizes of the model.
        loads: segments that may be loaded or computed.
        overhead_s: seconds that any prompt takes.
        flop_s: seconds of one floating-point operation.
        uncached_tokens: of segments that must be computed.
        documents: tokens of each document that needs no waiting for.
        waiting_s: by tier, seconds that it needs for what others are still reading.
        exact_layers_done: first layers that have been computed with every row already.
    """

    shape: Shape
    tokens: int
    question: int
    loads: Sequence[Loadable]
    method: FusionMethod
    overhead_s: float
    flop_s: float
    uncached_tokens: int = 0
    documents: Sequence[int] = ()
    waiting_s: Mapping[str, float] = field(default_factory=dict)
    exact_layers_done: int = 0

    def seconds(self, computed: Collection[int] = (), method: FusionMethod | None = None) -> float:
        """With the loads of these numbers computed instead; by another method if one is given."""
        arrivals = self._arrivals([x for i, x in enumerate(self.loads) if i not in computed])
        now = self.overhead_s
        for phase in self._phases(computed, method or self.method):
            if phase.exact and phase.layers.stop <= self.exact_layers_done:
                continue
            layer_s = self._layer_s(phase)
            for layer in phase.layers:
                if layer >= phase.cache_from:
                    now = max(now, arrivals[layer])
                now += layer_s
        return now + self._logits_s()

    def flops(self) -> float:
        """Operations, if everything is loaded."""
        return total_flops(self._phases((), self.method), FlopCount(self.shape))

    def _phases(self, computed: Collection[int], method: FusionMethod) -> list[Phase]:
        loaded = [x.tokens for i, x in enumerate(self.loads) if i not in computed]
        uncached = self.uncached_tokens + sum(self.loads[i].tokens for i in computed)
        return method.phases(
            PromptShape(
                tokens=self.tokens,
                question=self.question,
                layers=self.shape.layers,
                uncached=min(uncached, self.tokens - self.question),
                documents=[*self.documents, *loaded],
            )
        )

    def _logits_s(self) -> float:
        count = FlopCount(self.shape)
        count.unembed(1)
        return count.total * self.flop_s

    def _arrivals(self, loaded: Sequence[Loadable]) -> list[float]:
        """When each layer of all of them is there: those of one tier take turns, part by part."""
        layers = self.shape.layers
        pieces: dict[tuple[str, int], float] = {}  # by tier and number of parts: one part of each
        for load in loaded:
            if load.left_s > 0:
                kind = (load.tier, load.parts)
                pieces[kind] = pieces.get(kind, 0.0) + load.left_s / load.parts
        arrivals = [0.0] * layers
        for tier in {tier for tier, _ in pieces}:
            own = [(parts, piece_s) for (name, parts), piece_s in pieces.items() if name == tier]
            before = self.waiting_s.get(tier, 0.0)
            for layer in range(layers):
                rounds = 1 + max(layer * parts // layers for parts, _ in own)
                read_s = sum(min(parts, rounds) * piece_s for parts, piece_s in own)
                arrivals[layer] = max(arrivals[layer], before + read_s)
        return arrivals

    def _layer_s(self, phase: Phase) -> float:
        count = FlopCount(self.shape)
        phase.add_layer(count)
        return count.total * self.flop_s


# Up to so many documents every choice is tried.
EXHAUSTIVE = 6


def cheapest(model: PromptModel) -> frozenset[int]:
    """Which loads to compute instead, for the least expected time; as few as possible on ties.

    With more than `EXHAUSTIVE` documents: for every j the j that take longest per token are tried,
    then single loads are moved in or out of the best choice for as long as that helps.
    """
    count = len(model.loads)
    if not count or model.seconds() <= _least_if_any_is_computed(model):
        return frozenset()
    order = sorted(
        range(count), key=lambda i: model.loads[i].left_s / max(1, model.loads[i].tokens)
    )[::-1]
    candidates = [frozenset(order[:j]) for j in range(count + 1)]
    if count <= EXHAUSTIVE:
        every = range(2**count)
        candidates = [frozenset(i for i in range(count) if code >> i & 1) for code in every]
        candidates.sort(key=len)
    best = min(candidates, key=model.seconds)
    while count > EXHAUSTIVE:
        changed = min((best ^ {i} for i in range(count)), key=model.seconds)
        if model.seconds(changed) >= model.seconds(best):
            break
        best = changed
    return best


def _least_if_any_is_computed(model: PromptModel) -> float:
    """A lower bound on every such choice: the shortest load is computed and the others are there at
    once; or all are computed, and a two-pass method saves its first pass."""
    there = replace(model, loads=[replace(load, left_s=0.0) for load in model.loads])
    numbers = range(len(there.loads))
    shortest = min(numbers, key=lambda i: there.loads[i].tokens)
    return min(there.seconds({shortest}), there.seconds(numbers))


# Share of the time to the first token that a larger ratio may add.
UNHIDDEN = 0.02


def hidden_ratio(model: PromptModel, most: float, steps: int = 20) -> float:
    """The largest repair ratio, from the method's own to `most`, that loading hides: with it the
    first token comes at most `UNHIDDEN` later than with the method's own. (What is computed after
    the last part has arrived cannot be hidden at all.) The method's own, if nothing is loaded."""
    least = model.method.repair_ratio or 0.0
    if not any(load.left_s > 0 for load in model.loads):
        return least
    allowed = model.seconds() * (1 + UNHIDDEN)
    for step in range(steps, 0, -1):
        ratio = least + (most - least) * step / steps
        if model.seconds(method=model.method.with_repair_ratio(ratio)) <= allowed:
            return ratio
    return least
