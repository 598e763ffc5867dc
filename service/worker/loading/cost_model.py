"""The expected time to a prompt's first token, depending on which segments are computed.

The method says what it computes, phase by phase; loads from one tier take turns, part by part; a
layer starts when its part has been loaded and the layer before it is finished. How long reads and
prefills take here is learnt: seconds = overhead + bytes or FLOPs / rate.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvstitch.service.plugins import tiers
from kvstitch.service.worker.methods.bases.fusion import (
    FusionMethod,
    Phase,
    PromptShape,
    total_flops,
)
from kvstitch.service.worker.model.model_facts import FlopCount, Shape, chunk_prefill

# Weight of a measurement relative to the one after it: about the last ten count.
FADE = 0.9
# Weight of an artificial measurement of size zero that takes the initial overhead. It determines
# the overhead where all measured sizes are equal.
ANCHOR = 0.1
# Assumed latency (seconds) and bandwidth (bytes/s) of a tier of the core that was never read.
UNKNOWN_TIER = (2e-4, 300e6)
# Assumed overhead (seconds) and FLOP/s before anything was computed.
UNKNOWN_COMPUTE = {"cpu": (1e-4, 30e9), "cuda": (1e-4, 100e12)}
# Seconds after which a tier that was not read because it was slow is tried again.
STALE_S = 30.0


@dataclass
class Line:
    """y = overhead + slope · x, fitted by least squares; older points count less."""

    overhead: float  # never negative
    slope: float  # never negative
    count: int = 0  # number of points so far
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)  # w, wx, wy, wxx, wxy
    _anchor: float = field(init=False)

    def __post_init__(self) -> None:
        self._anchor = self.overhead

    @classmethod
    def of_prefills(cls, device: str) -> Line:
        """Return what seconds a prefill is expected to take by its FLOPs, before there was one."""
        overhead, rate = UNKNOWN_COMPUTE.get(device, UNKNOWN_COMPUTE["cuda"])
        return cls(overhead, 1 / rate)

    @property
    def measured(self) -> bool:
        """Whether there was any point."""
        return self.count > 0

    def add(self, x: float, y: float) -> None:
        """Add a point and fit the line again."""
        if x <= 0:
            return
        self.count += 1
        new = (1.0, x, y, x * x, x * y)
        self._sums = [old * FADE + one for old, one in zip(self._sums, new, strict=True)]
        w, wx, wy, wxx, wxy = self._sums
        w, wy = w + ANCHOR, wy + ANCHOR * self._anchor
        spread = w * wxx - wx * wx
        if spread <= 0:
            return
        slope = (w * wxy - wx * wy) / spread
        overhead = (wy - slope * wx) / w
        if overhead < 0 or slope <= 0:
            overhead, slope = 0.0, wy / max(wx, 1e-30)
        self.overhead, self.slope = overhead, slope

    def at(self, x: float) -> float:
        return self.overhead + self.slope * x


class TierEstimates:
    """Estimates how long a tier takes to read some bytes, for any thread. If reads of a tier
    overlap, the later one counts only from the end of the earlier one: the bandwidth is that for
    all readers together."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: dict[str, Line] = {}
        self._last_end: dict[str, float] = {}

    def add(self, tier: str, nbytes: int, started: float, ended: float) -> None:
        """Add a read of so many bytes; its times are by the clock, in seconds."""
        with self._lock:
            line = self._lines.setdefault(tier, self._unknown(tier))
            counted_from = max(started, self._last_end.get(tier, started))
            self._last_end[tier] = max(ended, counted_from)
            line.add(nbytes, max(ended - counted_from, 1e-6))

    def seconds(self, tier: str, nbytes: float, reads: int = 1) -> float:
        """Return the expected seconds of `reads` reads of `nbytes` in total."""
        with self._lock:
            line = self._lines.get(tier) or self._unknown(tier)
            return line.overhead * reads + line.slope * nbytes

    def measured(self, tier: str) -> bool:
        """Return whether the tier was ever read."""
        with self._lock:
            return tier in self._lines

    def stale(self, tier: str) -> bool:
        """Return whether the tier's last read is longer ago than `STALE_S`."""
        with self._lock:
            return self._clock() - self._last_end.get(tier, self._clock()) > STALE_S

    def known(self) -> dict[str, tuple[float, float]]:
        """Return the latency (seconds) and bandwidth (bytes/s) of every tier that was read."""
        with self._lock:
            return {t: (line.overhead, 1 / line.slope) for t, line in self._lines.items()}

    @staticmethod
    def _unknown(tier: str) -> Line:
        kind = tiers().get(tier)
        latency, bandwidth = (kind.first_read_s, kind.bytes_per_s) if kind else UNKNOWN_TIER
        return Line(latency, 1 / bandwidth)


@dataclass(frozen=True)
class LoadableSegment:
    """A stored segment, or the rest of one that is being read."""

    tokens: int
    tier: str
    nbytes: int = 0  # bytes still to be read
    parts: int = 1  # number of parts in which these are read
    # tokens of each prefix that its chunk is computed behind, by itself
    prefixes: Sequence[int] = (0,)
    # seconds since its last part arrived, or since it was requested; 0 if it was not requested yet
    quiet_s: float = 0.0
    # bytes that its tier had to read at that time, up to and with its next part
    turn_bytes: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """A prompt whose stored segments can be either loaded or computed."""

    tokens: int
    question: int
    method: FusionMethod
    loads: Sequence[LoadableSegment] = ()  # segments that can be either loaded or computed
    uncached_tokens: int = 0  # tokens of segments that must be computed
    # tokens of each document that is already loaded, or whose chunk will be computed by itself
    documents: Sequence[int] = ()
    # whether a load that is computed is computed by itself, before the prompt; the prompt then
    # costs what it would if it had been loaded
    as_stored: bool = False
    # tokens of each further chunk that is computed by itself, and of each of its prefixes
    alone: Sequence[tuple[int, Sequence[int]]] = ()
    # by tier, bytes that other prompts are still reading
    others_bytes: Mapping[str, float] = field(default_factory=dict)
    # number of first layers that have already been computed with every row
    exact_layers_done: int = 0
    # whether other requests decode meanwhile, which halves the speed of prefill
    crowded: bool = False


@dataclass(frozen=True)
class CostModel:
    """A prompt, and how long its parts take on this machine."""

    prompt: Prompt
    shape: Shape
    overhead_s: float
    flop_s: float
    left_s: Sequence[float] = ()
    others_s: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, computed: Collection[int] = (), method: FusionMethod | None = None) -> float:
        """Return the expected seconds to the first token."""
        arrivals = self._arrivals(computed)
        now = self.overhead_s + self._alone_flops(computed) * self.flop_s
        for phase in self._phases(computed, method or self.prompt.method):
            if phase.exact and phase.layers.stop <= self.prompt.exact_layers_done:
                continue
            for layer in phase.layers:
                if layer >= phase.cache_from:
                    now = max(now, arrivals[layer])
                count = FlopCount(self.shape)
                phase.add_layer(count, layer)
                now += count.total * self.flop_s
        count = FlopCount(self.shape)
        count.unembed(1)
        return now + count.total * self.flop_s

    def flops(self) -> float:
        """Return the floating-point operations if everything is loaded."""
        phases = self._phases((), self.prompt.method)
        return self._alone_flops(()) + total_flops(phases, FlopCount(self.shape))

    def _alone_flops(self, computed: Collection[int]) -> float:
        """Return operations of computing chunks by themselves, behind prefixes that are at hand."""
        prompt = self.prompt
        chosen = [prompt.loads[i] for i in computed] if prompt.as_stored else []
        chunks = [*prompt.alone, *((load.tokens, load.prefixes) for load in chosen)]
        return sum(chunk_prefill(self.shape, n, behind=prefixes) for n, prefixes in chunks)

    def _phases(self, computed: Collection[int], method: FusionMethod) -> list[Phase]:
        prompt = self.prompt
        if prompt.as_stored:
            computed = ()
        loaded = [load.tokens for i, load in enumerate(prompt.loads) if i not in computed]
        uncached = prompt.uncached_tokens + sum(prompt.loads[i].tokens for i in computed)
        return method.phases(
            PromptShape(
                tokens=prompt.tokens,
                question=prompt.question,
                layers=self.shape.layers,
                uncached=min(uncached, prompt.tokens - prompt.question),
                documents=[*prompt.documents, *loaded],
                ends_with_mixers=self.shape.ends_with_mixers,
            )
        )

    def _arrivals(self, computed: Collection[int]) -> list[float]:
        """Return seconds after which each layer of all loads that are not computed has arrived."""
        layers = self.shape.layers
        # By tier and number of parts: seconds for one part of each such load. The loads of a tier
        # take turns, so each round reads one part of every load that has parts left.
        part_s: dict[tuple[str, int], float] = {}
        for i, (load, left_s) in enumerate(zip(self.prompt.loads, self.left_s, strict=True)):
            if i not in computed and left_s > 0:
                kind = (load.tier, load.parts)
                part_s[kind] = part_s.get(kind, 0.0) + left_s / load.parts
        arrivals = [0.0] * layers
        for tier in {tier for tier, _ in part_s}:
            tier_loads = [(parts, s) for (name, parts), s in part_s.items() if name == tier]
            before = self.others_s.get(tier, 0.0)
            for layer in range(layers):
                rounds = 1 + max(layer * parts // layers for parts, _ in tier_loads)
                read_s = sum(min(parts, rounds) * s for parts, s in tier_loads)
                arrivals[layer] = max(arrivals[layer], before + read_s)
        return arrivals


# Up to this number of documents every combination is tried.
EXHAUSTIVE = 6


def cheapest(model: CostModel) -> frozenset[int]:
    """Return the indices of loads to compute instead, for the earliest first token; few of them."""
    loads, left_s = model.prompt.loads, model.left_s
    count = len(loads)
    if not count or model.seconds() <= _least_if_any_is_computed(model):
        return frozenset()
    order = sorted(range(count), key=lambda i: left_s[i] / max(1, loads[i].tokens))[::-1]
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


def _least_if_any_is_computed(model: CostModel) -> float:
    """Return a lower bound on the seconds of every choice in which some load is computed."""
    numbers = range(len(model.left_s))
    instant = replace(model, left_s=[0.0 for _ in numbers])
    shortest = min(numbers, key=lambda i: model.prompt.loads[i].tokens)
    return min(instant.seconds({shortest}), instant.seconds(numbers))


# Share by which a larger repair ratio may increase the time to the first token.
UNHIDDEN = 0.02


def hidden_ratio(model: CostModel, most: float, steps: int = 20) -> float:
    """Return the largest repair ratio whose extra work is hidden behind loading."""
    method = model.prompt.method
    least = method.repair_ratio or 0.0
    if not any(left_s > 0 for left_s in model.left_s):
        return least
    allowed = model.seconds() * (1 + UNHIDDEN)
    for step in range(steps, 0, -1):
        ratio = least + (most - least) * step / steps
        if model.seconds(method=method.with_repair_ratio(ratio)) <= allowed:
            return ratio
    return least
