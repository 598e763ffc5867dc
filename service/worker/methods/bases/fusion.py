"""The base of all fusion methods: a dataclass of parameters that runs the prefill of a prompt, and
says before how much it will compute (`PromptShape`, `Phase`). A method extends one of

    DenseMethod    (`dense.py`)   holds every token; computes some rows, others are cached
    TwoPassMethod  (`dense.py`)   the same, after a first pass of the question over the cache
    PartialMethod                 reads and holds only some tokens of every document, in its own way
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, ClassVar, Self

from torch import Tensor

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.layer_view import ChunkExtra, LayerView, PrefillResult
from kvstitch.service.worker.model.model_facts import FlopCount, ModelFacts
from kvstitch.service.worker.steps import Steps


@dataclass(frozen=True)
class PromptShape:
    """The sizes of a prompt that decide its cost."""

    tokens: int
    question: int
    layers: int
    uncached: int = 0  # tokens of segments that must be computed, because they are not stored
    documents: Sequence[int] = ()  # tokens of each document whose stored KV is used
    ends_with_mixers: bool = False  # behind the last layer, so that every row finishes it


@dataclass(frozen=True)
class Phase:
    """Neighbouring layers of one pass that compute the same rows."""

    layers: range  # which layers, in ascending order
    computed: int  # rows whose queries, keys and values are computed
    attending: int  # rows that continue from there through attention and MLP
    # how many of the attending rows belong to the question: these see every key, the others see
    # half of the keys on average
    question: int
    keys: int  # number of keys that a row of the question sees
    cache_from: int = 0  # first layer that cannot run before its stored KV has been loaded
    # every row of the prompt is computed, so this work stays valid even if a segment turns out not
    # to be stored
    exact: bool = False

    def add_layer(self, count: FlopCount, layer: int) -> None:
        """Add the operations of one of the layers to `count`."""
        question = min(self.question, self.attending)
        count.project(layer, self.computed)
        count.attend(question * self.keys + (self.attending - question) * self.keys / 2)
        count.finish(layer, self.attending)


def total_flops(phases: Sequence[Phase], count: FlopCount) -> float:
    """Return operations of all phases and of the first token's logits, counted with `count`."""
    for phase in phases:
        for layer in phase.layers:
            phase.add_layer(count, layer)
    count.unembed(1)
    return count.total


def dense_phases(
    shape: PromptShape, rows: int, *, full_layers: int = 0, cache_from: int = 0
) -> Iterator[Phase]:
    """Return the phases of the layer loop over a prompt of which every token is held. The first
    `full_layers` compute every row, and the layer after them projects every row; the others
    compute `rows`, question included."""
    last, n = shape.layers - 1, shape.tokens
    question = shape.question

    def phase(layers: range, computed: int, attending: int, *, exact: bool = False) -> Phase:
        return Phase(layers, computed, attending, question, n, cache_from, exact)

    full = min(full_layers, last)
    if full:
        yield phase(range(full), n, n, exact=True)
    selecting = full_layers > 0 and full < last
    if selecting:
        yield phase(range(full, full + 1), n, rows)
    start = full + selecting
    if start < last:
        yield phase(range(start, last), rows, rows)
    # Only the last row finishes the last layer: nothing but mixers reads the outputs of the others.
    yield phase(range(last, shape.layers), rows, rows if shape.ends_with_mixers else 1)


class Reads(Enum):
    """What is read from the store for a method."""

    NOTHING = "nothing"
    CHUNKS = "chunks"  # every token of every chunk
    PARTS = "parts"  # what the method itself asks for, a part of every document


@dataclass(frozen=True)
class FusionMethod(ABC):
    """The methods and properties that the worker uses of every fusion method."""

    reads: ClassVar[Reads] = Reads.CHUNKS
    extra: ClassVar[ChunkExtra | None] = None  # what it needs beside every chunk
    # whether it computes all rows of a segment, none, or the first (`FIRST_ROWS` at most)
    passes_states: ClassVar[bool] = False

    @abstractmethod
    def run(self, loop: Any) -> Steps[PrefillResult]:
        """Prefill a prompt with the passes of `loop`, a `LayerLoop`; a `PartialMethod` gets a
        `PartialPrompt` (prefill_launcher.py)."""

    @abstractmethod
    def phases(self, shape: PromptShape) -> list[Phase]:
        """Return how much `run` will compute for such a prompt."""

    @abstractmethod
    def recomputed_tokens(self, shape: PromptShape) -> int:
        """Return tokens of cached documents that are computed anew."""

    def max_kept_tokens(self, documents: Sequence[int]) -> int:
        """Return the largest number of document tokens that a layer holds."""
        return sum(documents)

    def ranking(self, view: LayerView) -> Tensor | None:
        """Return the scores `[n]` by which this layer ranks document tokens, for traces."""
        return None

    def fit(self, model: ModelFacts, name: str) -> None:
        """Raise InvalidRequest if the model cannot run the method of this name, or not with its
        parameters."""
        if model.stateful and not self.passes_states:
            raise InvalidRequest(
                f"fusion.method {name} computes some rows of stored documents, and layers of this "
                "model keep a state, which takes all rows before them: name vanilla, pie, "
                "legolink or full_reuse",
                field="fusion.method",
            )
        self.check(model)

    def check(self, model: ModelFacts) -> None:  # noqa: B027
        """Check the parameters against the model; raises InvalidRequest if they do not fit it."""

    def check_layer_exists(self, name: str, layer: int, model: ModelFacts) -> None:
        """Raise InvalidRequest if the model has no layer of this number; a helper for `check`."""
        if layer >= model.layers:
            raise InvalidRequest(
                f"fusion.{name} must be at most {model.layers - 1} (the model has "
                f"{model.layers} layers, counted from 0), not {layer}",
                field=f"fusion.{name}",
            )

    # -- the share of rows that are repaired ------------------------------------------------------

    @classmethod
    def repair_parameter(cls) -> str | None:
        """Return the name of the `auto` parameter that is the share of rows to recompute."""
        return next((f.name for f in fields(cls) if f.metadata.get("auto")), None)

    @property
    def repair_ratio(self) -> float | None:
        """The value of the repair parameter; None if the method has none."""
        name = self.repair_parameter()
        return None if name is None else float(getattr(self, name))

    @property
    def max_repair_ratio(self) -> float:
        """The largest value that the declaration of the repair parameter allows."""
        name = self.repair_parameter()
        bounds = (f.metadata.get("le") for f in fields(self) if f.name == name)
        return next((float(le) for le in bounds if le is not None), 1.0)

    def with_repair_ratio(self, ratio: float) -> Self:
        """Return the same method with another value of its repair parameter; raises
        InvalidRequest if the other parameters do not allow it."""
        name = self.repair_parameter()
        assert name is not None, "ask repair_parameter() first"
        changed: dict[str, Any] = {name: ratio}
        return replace(self, **changed)


def share_of(layout: PromptLayout, ratio: float) -> int:
    """Return ⌊ratio · n⌋: this share of the prompt's n rows, as a number of rows."""
    return floor_share(layout.tokens, ratio)


def floor_share(tokens: int, ratio: float) -> int:
    """Return ⌊ratio · tokens⌋ as in decimal: 0.29 · 100 is 29, not 28 as in binary floats."""
    return math.floor(ratio * tokens + 1e-9)


@dataclass(frozen=True)
class PartialMethod(FusionMethod):
    """Base: reads what it needs of every document, and runs layers of its own over that."""

    reads: ClassVar[Reads] = Reads.PARTS

    @abstractmethod
    def start_loads(self, addresses: Sequence[Any], loader: Any) -> list[Any]:
        """Start to read S and the documents at these addresses, None for empty ones, with a
        `Loader`; return the `Load` of each."""
