"""The base of methods that run the question over the stitched cache before they choose rows.

    question pass   the question's rows run over the cached keys (about one percent of the work of
                    a prefill), to measure how much attention every token receives
    seed pass       optional: the document rows that received most attention (the seeds) run over
                    the cached keys too, to measure what they attend to
    layers          the rows that the method picks by both measurements are computed, and the
                    question again, which may reuse its first layers from the question pass

A prompt without any cached document runs as a dense prompt.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.core.layer_view import AttentionScores
from service.worker.core.layout import PromptLayout
from service.worker.core.prefill_result import PrefillResult
from service.worker.core.steps import Steps
from service.worker.methods.bases.cost import Phase, PromptShape, dense_phases
from service.worker.methods.bases.dense import (
    EVERYTHING_CACHED,
    DenseMethod,
    LayerLoop,
    RowWeights,
    Sight,
)


@dataclass(frozen=True)
class TwoPassMethod(DenseMethod):
    """Base: picks rows by what the question attends to in a pass over the stitched cache."""

    def rows_after_question_pass(
        self, layout: PromptLayout, scores: AttentionScores, layers: int
    ) -> Tensor:
        """Rows to compute, starting from their embeddings.

        Args:
            scores: result of the question pass and the seed pass.
            layers: number of layers of the model.
        """
        raise NotImplementedError

    def question_pass_layers(self, layers: int) -> range:
        """Layers whose attention counts; both passes end after the last of them.

        Args:
            layers: number of layers of the model.
        """
        return range(layers)

    def question_row_weights(self, layer: int, layout: PromptLayout) -> RowWeights:
        """How the question rows' attention at a layer becomes scores.

        Returns:
            One weight per row `[m]` fp32, which is much faster than a function.
        """
        return torch.ones(len(layout.question_rows), device=layout.ids.device)

    def sight(self, layout: PromptLayout) -> Sight:
        """Which keys the question's rows see in their first pass, and which share their attention."""
        return EVERYTHING_CACHED

    def seed_rows(self, layout: PromptLayout, question_scores: Tensor) -> Tensor:
        """Document rows of the seed pass, ascending; none for no seed pass.

        Args:
            question_scores: attention that each token received from the question `[n]` fp32.
        """
        return layout.ids.new_empty(0)

    def seed_weights(self, rows: Tensor, question_scores: Tensor) -> Tensor:
        """Factor of each seed row's attention in the scores, `[m]` fp32."""
        return question_scores[rows]

    def reused_question_layers(self, layers: int) -> int:
        """Number of first layers whose question rows are reused from the question pass.

        Only used where documents are partly recomputed. Must be less than the number of layers
        that the question pass runs through.

        Args:
            layers: number of layers of the model.
        """
        return 0

    # -- implemented by the base ------------------------------------------------------------------

    def run(self, loop: LayerLoop) -> Steps[PrefillResult]:
        layout = loop.layout
        if not len(layout.cached_document_rows):
            return (yield from super().run(loop))
        scores = yield from self.attention_scores(loop)
        rows = self.rows_after_question_pass(layout, scores, loop.num_layers)
        return (yield from loop.layers(self, rows, scores))

    def attention_scores(self, loop: LayerLoop) -> Steps[AttentionScores]:
        """Runs the question pass, and the seed pass if there are seeds."""
        layout, layers = loop.layout, self.question_pass_layers(loop.num_layers)
        by_layer = yield from loop.attention_pass(
            layout.question_rows,
            layers,
            lambda layer: self.question_row_weights(layer, layout),
            sight=self.sight(layout),
            reusable_layers=self.reused_question_layers(loop.num_layers),
        )
        question = by_layer.sum(0)
        seeds = self.seed_rows(layout, question)
        if not len(seeds):
            return AttentionScores(question, torch.zeros_like(question))
        weights = self.seed_weights(seeds, question)
        seed_scores = yield from loop.attention_pass(seeds, layers, lambda layer: weights)
        return AttentionScores(question, seed_scores.sum(0))

    def phases(self, shape: PromptShape) -> list[Phase]:
        """The question pass, then the layers. Seeds are too few to count."""
        rows, question = self._rows(shape), shape.question
        passes = []
        if rows < shape.tokens:
            layers = range(self.question_pass_layers(shape.layers).stop)
            passes = [Phase(layers, question, question, question, shape.tokens)]
        repaired = self.recomputed_tokens(shape)
        reused = self.reused_question_layers(shape.layers)
        return passes + list(
            dense_phases(
                shape,
                rows,
                full_layers=self.full_layers,
                cache_from=self.layers_without_cache,
                without_question=reused if repaired and not shape.uncached else 0,
            )
        )
