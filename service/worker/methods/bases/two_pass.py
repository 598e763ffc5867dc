"""The base of methods that let the question read the stitched cache before they choose rows.

    first pass    the question's rows over the cached keys (about one percent of a prefill):
                  how much attention does every token get?
    seed pass     optional: the document rows that got most attention are sent the same way, and
                  what they attend to is found too
    layers        the rows that the method picks from both, and the question once more, which may
                  take its first layers from the first pass

A prompt without any cached document has nothing to read: it runs as a dense prompt.
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
from service.worker.methods.bases.dense import DenseMethod, LayerLoop, RowWeights


@dataclass(frozen=True)
class TwoPassMethod(DenseMethod):
    """Base: pick rows from what the question attends to in a pass over the stitched cache."""

    def rows_after_question_pass(
        self, layout: PromptLayout, scores: AttentionScores, layers: int
    ) -> Tensor:
        """Rows computed from the embedding on, on a model of so many layers."""
        raise NotImplementedError

    def question_pass_layers(self, layers: int) -> range:
        """Layers, of so many, whose attention counts; a pass ends behind the last of them."""
        return range(layers)

    def question_row_weights(self, layer: int, layout: PromptLayout) -> RowWeights:
        """How the question rows' attention at a layer becomes scores; a tensor of one weight per
        row `[m]` fp32 is much faster than a function."""
        return torch.ones(len(layout.question_rows), device=layout.ids.device)

    def seed_rows(self, layout: PromptLayout, question_scores: Tensor) -> Tensor:
        """Document rows, ascending, that are sent after the question, given what its pass found
        `[n]`."""
        return layout.ids.new_empty(0)

    def seed_weights(self, rows: Tensor, question_scores: Tensor) -> Tensor:
        """What the attention of each seed row counts for `[m]` fp32."""
        return question_scores[rows]

    def reused_question_layers(self, layers: int) -> int:
        """First layers, of so many, in which the question's rows stay as the first pass left them,
        where documents are repaired in part; fewer than the pass goes through."""
        return 0

    # -- what the base owns -----------------------------------------------------------------------

    def run(self, loop: LayerLoop) -> Steps[PrefillResult]:
        layout = loop.layout
        if not len(layout.cached_document_rows):
            return (yield from super().run(loop))
        scores = yield from self.attention_scores(loop)
        rows = self.rows_after_question_pass(layout, scores, loop.num_layers)
        return (yield from loop.layers(self, rows, scores))

    def attention_scores(self, loop: LayerLoop) -> Steps[AttentionScores]:
        """The question's pass, and the seeds' if there are any."""
        layout, layers = loop.layout, self.question_pass_layers(loop.num_layers)
        question = yield from loop.attention_pass(
            layout.question_rows,
            layers,
            lambda layer: self.question_row_weights(layer, layout),
            reusable_layers=self.reused_question_layers(loop.num_layers),
        )
        seeds = self.seed_rows(layout, question)
        if not len(seeds):
            return AttentionScores(question, torch.zeros_like(question))
        weights = self.seed_weights(seeds, question)
        found = yield from loop.attention_pass(seeds, layers, lambda layer: weights)
        return AttentionScores(question, found)

    def phases(self, shape: PromptShape) -> list[Phase]:
        """The question's pass, then the layers. Seeds are too few to count."""
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
