"""What the first token of one prompt is expected to take, given which segments are computed.

    cold segments, the question, the chosen share   rows at every layer after the whole ones
    loads                                           of one tier in turns, part by part; of
                                                    different tiers side by side
    a layer                                         begins when its part is there and the layer
                                                    before it is done

Plain numbers; knows no tensors, no store and no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from service.worker.core.flops import FlopCount, Shape


@dataclass(frozen=True)
class Loadable:
    """A stored segment, or one of which part has been read.

    left_s: seconds that its tier needs for what is left; parts: pieces in which it arrives.
    """

    tokens: int
    tier: str
    left_s: float
    parts: int = 1


@dataclass(frozen=True)
class MethodCost:
    """What of a fusion method decides its cost: `whole` first layers compute every row, `unread`
    ones look at nothing stored, `ratio` of the rows are computed at the others; `scouts`: first
    layers through which the question runs over the whole cache before that; `settled`: those after
    which it runs again, where nothing is cold."""

    whole: int = 0
    unread: int = 0
    ratio: float = 0.0
    scouts: int = 0
    settled: int = 0


@dataclass(frozen=True)
class PromptModel:
    """One prompt. loads: segments that may be loaded or computed; cold_tokens: of segments that
    must be computed; waiting_s: by tier what others are still reading; begun: the whole layers are
    behind us; overhead_s and flop_s: seconds of a prompt and of an operation."""

    shape: Shape
    tokens: int
    question: int
    loads: Sequence[Loadable]
    method: MethodCost
    overhead_s: float
    flop_s: float
    uncached_tokens: int = 0
    waiting_s: Mapping[str, float] = field(default_factory=dict)
    begun: bool = False

    def seconds(self, cold: Collection[int] = (), ratio: float | None = None) -> float:
        """With the loads of these numbers computed instead."""
        loaded = [load for i, load in enumerate(self.loads) if i not in cold]
        ratio = self.method.ratio if ratio is None else ratio
        rows = self.question + self.uncached_tokens
        rows += sum(self.loads[i].tokens for i in cold)
        rows = min(self.tokens, rows + int(ratio * self.tokens))
        layers, method = self.shape.layers, self.method
        arrivals = self._arrivals(loaded)
        each, last = self._layer_s(rows, rows), self._layer_s(rows, 1)
        others = rows - self.question
        settled = method.settled if others == int(ratio * self.tokens) > 0 else 0
        settling = self._layer_s(others, others, 0) if settled else each
        said = self._logits_s()
        now = self.overhead_s
        if method.scouts and rows < self.tokens:
            asked = self._layer_s(self.question, self.question)
            for arrival in arrivals[: method.scouts]:
                now = max(now, arrival) + asked
        whole = 0.0 if self.begun or not method.whole else self._layer_s(self.tokens, self.tokens)
        selecting = self._layer_s(self.tokens, rows) if method.whole else each
        for layer in range(layers):
            if layer >= method.unread:
                now = max(now, arrivals[layer])
            if layer == layers - 1:
                now += last
            elif layer < method.whole:
                now += whole
            elif layer < settled:
                now += settling
            else:
                now += selecting if layer == method.whole else each
        return now + said

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

    def _layer_s(self, projected: int, rows: int, question: int | None = None) -> float:
        """A row of the question (all of it, unless told) sees all keys, the others half of them on
        average. The last layer finishes one row."""
        count = FlopCount(self.shape)
        count.project(projected)
        question = min(self.question if question is None else question, rows)
        count.attend(question * self.tokens + (rows - question) * self.tokens / 2)
        count.finish(rows)
        return count.total * self.flop_s


# Up to so many documents every choice is tried.
EXHAUSTIVE = 6


def cheapest(model: PromptModel) -> frozenset[int]:
    """Which loads to compute instead, for the least expected time; as few as possible on ties.

    Beyond `EXHAUSTIVE` documents: the slowest j per token for every j, then single changes of mind
    while they help.
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
    """Every such choice takes at least that long: the shortest is computed, the others are there;
    or all are computed, and a method that scouts has nothing to scout."""
    there = replace(model, loads=[replace(load, left_s=0.0) for load in model.loads])
    numbers = range(len(there.loads))
    shortest = min(numbers, key=lambda i: there.loads[i].tokens)
    return min(there.seconds({shortest}), there.seconds(numbers))


# Of the time to the first token, what a larger ratio may add.
UNHIDDEN = 0.02


def hidden_ratio(model: PromptModel, most: float, steps: int = 20) -> float:
    """The largest ratio from the method's own to `most` that loading hides: the first token is
    expected at most `UNHIDDEN` later than with the method's own (what is computed after the last
    part came cannot be hidden at all). The method's own if there is nothing to hide behind."""
    least = model.method.ratio
    if not any(load.left_s > 0 for load in model.loads):
        return least
    allowed = model.seconds() * (1 + UNHIDDEN)
    for step in range(steps, 0, -1):
        ratio = least + (most - least) * step / steps
        if model.seconds(ratio=ratio) <= allowed:
            return ratio
    return least
