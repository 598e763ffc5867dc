"""The expected time to a prompt's first token, depending on which segments are computed.

The method says what it computes, phase by phase (`FusionMethod.phases`). Loads from one tier take
turns, part by part; different tiers are read in parallel. A layer starts when its part has been
loaded and the layer before it is finished.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from service.worker.methods.bases.fusion import FusionMethod, Phase, PromptShape, total_flops
from service.worker.model.flops import FlopCount, Shape, chunk_prefill


@dataclass(frozen=True)
class Loadable:
    """A stored segment, or the rest of one that is being read.

    Attributes:
        tokens: tokens of the segment.
        tier: where it is stored.
        left_s: seconds that the tier needs for the bytes that are still to be read.
        parts: number of parts in which these arrive.
        prefix: tokens that stand before it when its chunk is computed by itself.
    """

    tokens: int
    tier: str
    left_s: float
    parts: int = 1
    prefix: int = 0


@dataclass(frozen=True, kw_only=True)
class PromptModel:
    """One prompt, with all that its time to the first token depends on.

    Attributes:
        shape: sizes of the model.
        tokens: tokens of the whole prompt.
        question: tokens of the question.
        loads: segments that can be either loaded or computed.
        method: the prompt's fusion method.
        overhead_s: seconds that any prompt takes, besides its operations.
        flop_s: seconds per floating-point operation.
        uncached_tokens: tokens of segments that must be computed.
        documents: tokens of each document that is already loaded, or whose chunk will be computed
            by itself.
        as_stored: whether a load that is computed is computed by itself, before the prompt; the
            prompt then costs what it would if it had been loaded.
        alone: tokens of each further chunk that is computed by itself, and of its prefix.
        waiting_s: by tier, seconds that it needs for what other prompts are still reading.
        exact_layers_done: number of first layers that have already been computed with every row.
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
    as_stored: bool = False
    alone: Sequence[tuple[int, int]] = ()
    waiting_s: Mapping[str, float] = field(default_factory=dict)
    exact_layers_done: int = 0

    def seconds(self, computed: Collection[int] = (), method: FusionMethod | None = None) -> float:
        """Expected seconds to the first token.

        Args:
            computed: indices of the loads that are computed instead of loaded.
            method: used instead of the prompt's own method.
        """
        arrivals = self._arrivals([x for i, x in enumerate(self.loads) if i not in computed])
        now = self.overhead_s + self._alone_flops(computed) * self.flop_s
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
        """Floating-point operations if everything is loaded."""
        phases = self._phases((), self.method)
        return self._alone_flops(()) + total_flops(phases, FlopCount(self.shape))

    def _alone_flops(self, computed: Collection[int]) -> float:
        """Operations of computing chunks by themselves, behind prefixes that are at hand."""
        chosen = [self.loads[i] for i in computed] if self.as_stored else []
        chunks = [*self.alone, *((load.tokens, load.prefix) for load in chosen)]
        return sum(chunk_prefill(self.shape, tokens, behind=prefix) for tokens, prefix in chunks)

    def _phases(self, computed: Collection[int], method: FusionMethod) -> list[Phase]:
        if self.as_stored:
            computed = ()
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
        """Seconds after which each layer of all these loads has arrived."""
        layers = self.shape.layers
        # By tier and number of parts: seconds for one part of each such load. The loads of a tier
        # take turns, so each round reads one part of every load that has parts left.
        part_s: dict[tuple[str, int], float] = {}
        for load in loaded:
            if load.left_s > 0:
                kind = (load.tier, load.parts)
                part_s[kind] = part_s.get(kind, 0.0) + load.left_s / load.parts
        arrivals = [0.0] * layers
        for tier in {tier for tier, _ in part_s}:
            tier_loads = [(parts, s) for (name, parts), s in part_s.items() if name == tier]
            before = self.waiting_s.get(tier, 0.0)
            for layer in range(layers):
                rounds = 1 + max(layer * parts // layers for parts, _ in tier_loads)
                read_s = sum(min(parts, rounds) * s for parts, s in tier_loads)
                arrivals[layer] = max(arrivals[layer], before + read_s)
        return arrivals

    def _layer_s(self, phase: Phase) -> float:
        count = FlopCount(self.shape)
        phase.add_layer(count)
        return count.total * self.flop_s


# Up to this number of documents every combination is tried.
EXHAUSTIVE = 6


def cheapest(model: PromptModel) -> frozenset[int]:
    """The loads to compute instead, for the earliest first token; as few as possible on ties.

    With more than `EXHAUSTIVE` documents, first the j loads that take longest per token are tried
    for every j; then single loads are moved in or out of the best choice as long as that helps.

    Returns:
        Indices into `model.loads`.
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
    """A lower bound on the seconds of every choice in which at least one load is computed.

    Either only the shortest load is computed and the others arrive at once; or all are computed,
    because then a two-pass method saves its question pass.
    """
    instant = replace(model, loads=[replace(load, left_s=0.0) for load in model.loads])
    numbers = range(len(instant.loads))
    shortest = min(numbers, key=lambda i: instant.loads[i].tokens)
    return min(instant.seconds({shortest}), instant.seconds(numbers))


# Share by which a larger repair ratio may increase the time to the first token.
UNHIDDEN = 0.02


def hidden_ratio(model: PromptModel, most: float, steps: int = 20) -> float:
    """The largest repair ratio whose extra work is hidden behind loading.

    With it the time to the first token is at most `UNHIDDEN` longer than with the method's own
    ratio. A little must be allowed, because work after the arrival of the last part cannot be
    hidden at all.

    Args:
        most: upper bound of the ratio.
        steps: number of ratios tried between the method's own and `most`.

    Returns:
        The ratio; the method's own if nothing is loaded.
    """
    least = model.method.repair_ratio or 0.0
    if not any(load.left_s > 0 for load in model.loads):
        return least
    allowed = model.seconds() * (1 + UNHIDDEN)
    for step in range(steps, 0, -1):
        ratio = least + (most - least) * step / steps
        if model.seconds(method=model.method.with_repair_ratio(ratio)) <= allowed:
            return ratio
    return least
