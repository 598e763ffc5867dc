"""A fusion method: a dataclass of parameters and one or two hooks of the layer loop.

The loop (`service.worker.forward.prefill`) owns everything else: placing cached keys at their
positions, writing computed ones, the index mask, the rows that no method may drop (question, cold
segments). A method never touches the store and sees the cache only through its hooks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from service.errors import InvalidRequest
from service.worker.core.layer_view import AttentionScores, LayerView
from service.worker.core.layout import PromptLayout
from service.worker.core.model_facts import ModelFacts


@dataclass(frozen=True)
class FusionMethod:
    """Base: recompute nothing but the question, keys at their global positions."""

    # A method that computes every row itself has nothing loaded for it.
    reads_cache: ClassVar[bool] = True
    # A scouting method has the question run over the stitched cache first; see `scout`.
    scouts: ClassVar[bool] = False
    # A sparse method holds only some of the documents' tokens; see `service.worker.methods.sparse`.
    sparse: ClassVar[bool] = False

    @property
    def layers_without_cache(self) -> int:
        """First layers at which no stored KV is looked at: they run before it is there."""
        return 0

    @property
    def full_layers(self) -> int:
        """First layers that every row goes through: what runs there is not lost if a stored
        segment is computed after all."""
        return 0

    def check(self, model: ModelFacts) -> None:
        """Raise InvalidRequest if the parameters do not fit this model."""

    def question_pass_layers(self, layers: int) -> range:
        """Layers whose attention is evidence, of so many; a pass ends behind the last of them."""
        return range(layers)

    def reused_question_layers(self, layers: int) -> int:
        """First layers, of so many, in which the question's rows stay as the first pass left them,
        where documents are repaired in part; fewer than the pass goes through."""
        return 0

    def question_row_weights(self, layout: PromptLayout) -> Tensor | None:
        """What each question row's attention counts for as evidence `[m]` fp32: the first pass adds
        up softmax weights over heads, rows and `scouted_layers`, each row's times this. None: ask
        `scout`, which is slower."""
        return None

    def scout(
        self, layer: int, weights: Tensor, rows: Tensor, layout: PromptLayout
    ) -> Tensor | None:
        """Evidence `[seen]` fp32 of one layer, where it is no such sum, from the attention `[heads,
        m, seen]` fp32 of the question rows at indices `rows` `[m]`, a tile of them; the pass sums
        it over layers and tiles. None: nothing to say."""
        raise NotImplementedError

    def seed_rows(self, layout: PromptLayout, asked: Tensor) -> Tensor:
        """Document rows, ascending, that run over the stitched cache after the question did, given
        its summed evidence `[n]`: what they look at is evidence too."""
        return layout.ids.new_empty(0)

    def seed_weights(self, rows: Tensor, asked: Tensor) -> Tensor:
        """What each lead's attention counts for in that second pass `[m]`, of the leads at indices
        `rows`; `asked` is the question's evidence."""
        raise NotImplementedError

    def rows_after_question_pass(
        self, layout: PromptLayout, attention_scores: AttentionScores, layers: int
    ) -> Tensor:
        """Rows to compute from the embedding on, beside the forced ones, on a model of so many
        layers. Called instead of `start_rows` after a first pass."""
        raise NotImplementedError

    def start_rows(self, layout: PromptLayout) -> Tensor:
        """Rows computed from the embedding on, beside the forced ones (question, cold)."""
        return layout.question_rows

    def key_positions(self, layout: PromptLayout) -> Tensor:
        """RoPE position `[n]` at which cached keys are placed."""
        return layout.all_rows

    def select(self, view: LayerView) -> Tensor | None:
        """Rows to go on with from this layer's attention, beside the forced ones; None: all."""
        return None

    def ranking(self, view: LayerView) -> Tensor | None:
        """The scores `[n]` that rank document tokens from this layer on, higher goes on; None where
        the method ranks nothing. Only for those who want to see them; called before `select`."""
        return None

    def check_layer_exists(self, name: str, layer: int, model: ModelFacts) -> None:
        """For `check`: parameter `name` must be one of the model's layers."""
        if layer >= model.layers:
            raise InvalidRequest(
                f"fusion.{name} must be at most {model.layers - 1} (the model has "
                f"{model.layers} layers, counted from 0), not {layer}",
                field=f"fusion.{name}",
            )


def share_of(layout: PromptLayout, ratio: float) -> int:
    """⌊ratio · n⌋ in decimal: a hair more, or 0.29 · 100 would count 28 in binary."""
    return math.floor(ratio * layout.tokens + 1e-9)
