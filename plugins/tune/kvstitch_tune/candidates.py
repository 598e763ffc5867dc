"""A configuration to try: fusion method, prefix mode, codec and eviction, by their names.

The configurations that are tried: which methods, over which range of costs.

Every stage asks for its own part, because the parts multiply: methods and their amounts first, then
prefix modes, codecs and evictions of those that have turned out well.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.settings.calibration import BUILT_IN_FUSION, STATEFUL_FUSION
from kvstitch.service.worker.api import FIRST_ROWS, make_eviction, make_fusion
from kvstitch.service.worker.methods.api import EvictionMethod, FusionMethod, ModelFacts, Reads

Parameters = tuple[tuple[str, Any], ...]
"""Names and values of a method's parameters; those left out have the method's defaults."""

FULL_PREFILL = "vanilla"


@dataclass(frozen=True)
class Candidate:
    """One configuration.

    Attributes:
        method: Name of the fusion method.
        parameters: Of the fusion method.
        prefix_mode: What chunks are precomputed behind.
        codec: That chunks are stored with.
        eviction: Name of the eviction method; empty: nothing is evicted.
        eviction_parameters: Of the eviction method.
    """

    method: str
    parameters: Parameters = ()
    prefix_mode: str = "none"
    codec: str = "raw"
    eviction: str = ""
    eviction_parameters: Parameters = ()

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Candidate:
        """Return what `fields` wrote."""
        fusion, eviction = dict(fields["fusion"]), dict(fields["eviction"] or {})
        return cls(
            fusion.pop("method"),
            _parameters(fusion),
            fields["prefix_mode"],
            fields["codec"],
            eviction.pop("method", ""),
            _parameters(eviction),
        )

    @property
    def key(self) -> str:
        """16 hex characters that identify it, with the values of all parameters."""
        text = (
            f"{self.fusion_method()!r} {self.prefix_mode} {self.codec} {self.eviction_method()!r}"
        )
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def holds_all(self) -> bool:
        """Whether the KV of the whole prompt is there."""
        return self.fusion_method().reads is not Reads.PARTS

    @property
    def label(self) -> str:
        """For people: `a3 ratio=0.15 · system · int8`; what is usual is left out."""
        parts = [_call(self.method, self.parameters), self.prefix_mode]
        if self.codec != "raw":
            parts.append(self.codec)
        if self.eviction:
            parts.append(_call(self.eviction, self.eviction_parameters))
        return " · ".join(parts)

    @property
    def fields(self) -> dict[str, Any]:
        """As requests and settings name them; ready for JSON."""
        eviction = {"method": self.eviction, **dict(self.eviction_parameters)}
        return {
            "fusion": {"method": self.method, **dict(self.parameters)},
            "prefix_mode": self.prefix_mode,
            "codec": self.codec,
            "eviction": eviction if self.eviction else None,
        }

    def fusion_method(self) -> FusionMethod:
        """Return the method."""
        return make_fusion(self.method, dict(self.parameters))

    def eviction_method(self) -> EvictionMethod | None:
        """The eviction method, None if nothing is evicted; raises as `fusion_method` does."""
        return (
            make_eviction(self.eviction, dict(self.eviction_parameters)) if self.eviction else None
        )


def _parameters(values: Mapping[str, Any]) -> Parameters:
    return tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in values.items())


def _call(name: str, parameters: Parameters) -> str:
    written = (f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
               for key, value in parameters)  # fmt: skip
    return " ".join([name, *written])


RATIOS = (0.05, 0.1, 0.15, 0.3, 0.5)
ENDS = (4, 20, 32)
"""First and last tokens of every document that LegoLink recomputes."""
FIRSTS = (1, 2, FIRST_ROWS)
"""First tokens that it recomputes where layers keep a state, to the most that it can."""
PREFIX_MODES = ("primer", "system", "neighbours", "none", "bos")
"""In the order in which they are worth trying."""
CODECS = ("k8v8", "k8v4", "int4")
EVICTIONS = ("snapkv", "ada_snapkv", "h2o", "kvec", "streaming_llm")
BUDGETS = (0.75, 0.5)
"""Of a typical prompt's tokens, kept by an eviction method."""
SPARSE_TOKENS = 256
"""SamKV keeps shorter documents whole, so there is nothing to gain from it."""
LAYER_SHARES = (0.07, 0.13, 0.2, 0.27, 0.33)
"""Depths at which A3 may rank tokens; a deeper one means more layers computed for every token."""

LAYER_METHOD, LAYER_RATIO = "a3", 0.15
"""Ranks tokens at one layer, which is looked for at the ratio of the papers."""


def fixed_defaults(prefix_mode: str, *, stateful: bool = False) -> Candidate:
    """Return what the service uses where nothing was tuned."""
    fusion: dict[str, Any] = dict(BUILT_IN_FUSION)
    if stateful:
        fusion = {**STATEFUL_FUSION, "first": FIRST_ROWS, "last": 0}  # as the worker's defaults
    return Candidate(fusion.pop("method"), _parameters(fusion), prefix_mode)


def methods(prefix_mode: str, facts: ModelFacts, *, document_tokens: float) -> list[Candidate]:
    """Return all methods that the model can run over their range of costs, with chunks stored raw
    in one prefix mode, in the order in which they are worth trying: those that were nearest to full
    prefill elsewhere first, each method at the papers' ratio before others.
    """
    named: list[tuple[str, Parameters]] = [("pie", ())]
    named += [("question_scout", (("ratio", ratio),)) for ratio in RATIOS]
    named += [
        (name, (("ratio", ratio),))
        for ratio in sorted(RATIOS, key=lambda ratio: abs(ratio - LAYER_RATIO))
        for name in ("a3", "infoflow", "cacheblend")
    ]
    named += [
        (LAYER_METHOD, (("ratio", LAYER_RATIO), ("selection_layer", layer)))
        for layer in selection_layers(facts.layers)
    ]
    ends = [(k, 0) for k in FIRSTS] if facts.stateful else [(k, k) for k in ENDS]
    named += [("legolink", (("first", first), ("last", last))) for first, last in ends]
    named.append(("full_reuse", ()))
    if document_tokens >= SPARSE_TOKENS:
        named.append(("samkv", ()))
    found = [Candidate(name, parameters, prefix_mode) for name, parameters in named]
    runnable = [candidate for candidate in found if _runs(candidate, facts)]
    return _distinct([fixed_defaults(prefix_mode, stateful=facts.stateful), *runnable])


def _runs(candidate: Candidate, facts: ModelFacts) -> bool:
    try:
        candidate.fusion_method().fit(facts, candidate.method)
    except InvalidRequest:
        return False
    return True


def selection_layers(layers: int) -> list[int]:
    """Layers at which A3 is tried besides the paper's, 1."""
    wanted = {math.ceil(share * layers) for share in LAYER_SHARES}
    return sorted(layer for layer in wanted if 1 < layer < layers)


def prefix_modes(of: Sequence[Candidate], served: str, *, has_bos: bool) -> list[Candidate]:
    """Return the same candidates in the served prefix mode, then in the others; `bos` is `none`
    for a model without BOS."""
    modes = [mode for mode in PREFIX_MODES if has_bos or mode != "bos"]
    modes.sort(key=lambda mode: mode != served)
    return _distinct(replace(c, prefix_mode=mode) for mode in modes for c in of)


def codecs(of: Candidate) -> list[Candidate]:
    """Return the same candidate with smaller codecs."""
    return [replace(of, codec=codec) for codec in CODECS]


def evictions(of: Candidate, *, prompt_tokens: float, facts: ModelFacts) -> list[Candidate]:
    """Return the same candidate with evictions of a typical prompt."""
    names = [*EVICTIONS, *(["headkv"] if facts.head_scores else [])]
    return [
        replace(of, eviction=name, eviction_parameters=(("budget", int(share * prompt_tokens)),))
        for share in BUDGETS
        for name in names
    ]


def _distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    found: dict[str, Candidate] = {}
    for candidate in candidates:
        found.setdefault(candidate.key, candidate)
    return list(found.values())
