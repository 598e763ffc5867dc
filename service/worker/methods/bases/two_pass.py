"""The base of methods that run the question over the stitched cache before they choose rows.

question pass   the question's rows run over the cached keys (about one percent of a prefill's
                work), to measure how much attention every token receives
layers          the rows that the method picks by it are computed, and the question again
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.layout import PromptLayout
from service.worker.methods.bases.dense import (
    EVERYTHING_CACHED,
    DenseMethod,
    LayerLoop,
    RowWeights,
    Sight,
)
from service.worker.methods.bases.fusion import Phase, PromptShape, dense_phases, floor_share
from service.worker.methods.layer_view import LayerView, PrefillResult
from service.worker.methods.scores import stable_topk
from service.worker.steps import Steps


@dataclass(frozen=True)
class TwoPassMethod(DenseMethod):
    """Base: picks rows by what the question attends to in a pass over the stitched cache."""

    def rows_after_question_pass(self, layout: PromptLayout, scores: Tensor) -> Tensor:
        """Return rows to compute, by the attention `[n]` that each token received."""
        raise NotImplementedError

    def question_pass_layers(self, layers: int) -> range:
        """Return the layers whose attention counts; the question pass ends with the last."""
        return range(layers)

    def question_row_weights(self, layer: int, layout: PromptLayout) -> RowWeights:
        """Return how the question rows' attention at a layer becomes scores."""
        return layout.once("ones of question rows", lambda: torch.ones(len(layout.question_rows)))

    def sight(self, layout: PromptLayout) -> Sight:
        """Return which keys the question sees in its pass, and which share its attention."""
        return EVERYTHING_CACHED

    # -- implemented by the base ------------------------------------------------------------------

    def run(self, loop: LayerLoop) -> Steps[PrefillResult]:
        if not len(loop.layout.cached_document_rows):
            return (yield from super().run(loop))
        scores = (yield from self.attention_scores(loop)).sum(0)
        rows = self.rows_after_question_pass(loop.layout, scores)
        return (yield from loop.layers(self, rows, scores))

    def attention_scores(self, loop: LayerLoop) -> Steps[Tensor]:
        """Run the question pass; return each token's attention `[layers that count, n]` fp32."""
        layout = loop.layout
        return (
            yield from loop.attention_pass(
                layout.question_rows,
                self.question_pass_layers(loop.num_layers),
                lambda layer: self.question_row_weights(layer, layout),
                self.sight(layout),
            )
        )

    def phases(self, shape: PromptShape) -> list[Phase]:
        """Return the question pass, then the layers."""
        rows, question = self._rows(shape), shape.question
        passes = []
        if rows < shape.tokens:
            layers = range(self.question_pass_layers(shape.layers).stop)
            passes = [Phase(layers, question, question, question, shape.tokens)]
        dense = dense_phases(
            shape, rows, full_layers=self.full_layers, cache_from=self.layers_without_cache
        )
        return [*passes, *dense]


@dataclass(frozen=True)
class QuestionRankedMethod(TwoPassMethod):
    """Base of published methods that compute the ⌊ratio · |D|⌋ document tokens that the question
    attends to most. They differ in what the question has seen, in the layers that count, and in
    how many rows they compute. A subclass has the parameter `ratio`."""

    @property
    def document_ratio(self) -> float:
        """Share of the documents' tokens that are computed anew."""
        assert self.repair_ratio is not None, "a subclass has a repair parameter"
        return self.repair_ratio

    def recomputed_tokens(self, shape: PromptShape) -> int:
        return floor_share(sum(shape.documents), self.document_ratio)

    def rows_after_question_pass(self, layout: PromptLayout, scores: Tensor) -> Tensor:
        candidates = layout.cached_document_rows
        wanted = floor_share(len(candidates), self.document_ratio)
        return candidates[stable_topk(scores[candidates], wanted)]

    def ranking(self, view: LayerView) -> Tensor | None:
        return view.attention_scores if view.layer == 0 else None


def last_layers(layers: int, first: int, count: int) -> range:
    """Return the `count` layers from `first` on; of a model with fewer layers, its last ones."""
    stop = min(first + count, layers)
    return range(max(0, stop - count), stop)
