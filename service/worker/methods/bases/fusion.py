"""A fusion method: a dataclass of parameters that drives the prefill of a prompt.

Extend one of the three bases, which own everything that is alike for all methods:

    DenseMethod    (`dense.py`)      holds every token, computes some rows, others come from caches
    TwoPassMethod  (`two_pass.py`)   the same, after a first pass of the question over the caches
    SparseMethod   (`sparse.py`)     reads and holds only some tokens of every document
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, ClassVar, Self

from torch import Tensor

from service.errors import InvalidRequest
from service.worker.core.layer_view import LayerView
from service.worker.core.layout import PromptLayout
from service.worker.core.model_facts import ModelFacts
from service.worker.core.prefill_result import PrefillResult
from service.worker.core.steps import Steps
from service.worker.methods.bases.cost import Phase, PromptShape


class Reads(Enum):
    """What a method has read from the store for it."""

    NOTHING = "nothing"
    CHUNKS = "chunks"  # every token of every chunk
    PARTS = "parts"  # sketches and some blocks of every document


@dataclass(frozen=True)
class FusionMethod(ABC):
    """What the worker asks every fusion method, whatever its kind."""

    reads: ClassVar[Reads] = Reads.CHUNKS

    @abstractmethod
    def run(self, loop: Any) -> Steps[PrefillResult]:
        """Prefill a prompt with the passes that `loop` offers.

        Args:
            loop: a `LayerLoop` for dense and two-pass methods, a `SparseLoop` for sparse ones.
        """

    @abstractmethod
    def phases(self, shape: PromptShape) -> list[Phase]:
        """What `run` will compute of such a prompt; the planner weighs it against loading."""

    @abstractmethod
    def recomputed_tokens(self, shape: PromptShape) -> int:
        """Tokens of cached documents that are computed anew."""

    def max_kept_tokens(self, documents: Sequence[int]) -> int:
        """Most document tokens that a layer holds, from the documents' lengths in tokens."""
        return sum(documents)

    def ranking(self, view: LayerView) -> Tensor | None:
        """The scores `[n]` that rank document tokens from this layer on, higher goes on; None where
        the method ranks nothing. Only token traces ask; before rows are selected."""
        return None

    def check(self, model: ModelFacts) -> None:  # noqa: B027
        """Raise InvalidRequest if the parameters do not fit this model."""

    def check_layer_exists(self, name: str, layer: int, model: ModelFacts) -> None:
        """For `check`: parameter `name` must be one of the model's layers."""
        if layer >= model.layers:
            raise InvalidRequest(
                f"fusion.{name} must be at most {model.layers - 1} (the model has "
                f"{model.layers} layers, counted from 0), not {layer}",
                field=f"fusion.{name}",
            )

    # -- the share of rows that are repaired ------------------------------------------------------

    @classmethod
    def repair_parameter(cls) -> str | None:
        """The parameter declared with `parameter(..., auto=True)`: the share of the prompt's rows
        to recompute. The planner and the correctness gate may raise it. None: there is none."""
        return next((f.name for f in fields(cls) if f.metadata.get("auto")), None)

    @property
    def repair_ratio(self) -> float | None:
        """The value of that parameter."""
        name = self.repair_parameter()
        return None if name is None else float(getattr(self, name))

    @property
    def max_repair_ratio(self) -> float:
        """The largest value that its declaration allows."""
        name = self.repair_parameter()
        bounds = (f.metadata.get("le") for f in fields(self) if f.name == name)
        return next((float(le) for le in bounds if le is not None), 1.0)

    def with_repair_ratio(self, ratio: float) -> Self:
        """The same method with another value of that parameter.

        Raises:
            InvalidRequest: its other parameters forbid the value.
        """
        name = self.repair_parameter()
        assert name is not None, "ask repair_parameter() first"
        changed: dict[str, Any] = {name: ratio}
        return replace(self, **changed)


def share_of(layout: PromptLayout, ratio: float) -> int:
    """⌊ratio · n⌋ rows of the prompt."""
    return floor_share(layout.tokens, ratio)


def floor_share(tokens: int, ratio: float) -> int:
    """⌊ratio · tokens⌋, in decimal: 0.29 · 100 is 29, in binary floating point it is 28."""
    return math.floor(ratio * tokens + 1e-9)
