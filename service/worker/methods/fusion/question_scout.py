"""Question scout: every chunk's first rows, and those that the question attends to in a first pass.

A method of kvstitch's own. Two kinds of rows are worth computing anew (measured, docs/quality.md):

1. The first tokens of every chunk. Precomputed without what stood before them they act as attention
   sinks and miss their context, whatever the question is.
2. The tokens that this question attends to. The question's rows run once over the stitched cache
   (this is PIE, about one percent of a prefill), and every token gets the attention it received,
   summed over all layers and query heads: what the last row pays, which gives the first answer
   token, plus half the mean of what all question rows pay. A3 and CacheBlend must compute the first
   one or two layers for every token, to rank tokens at one of them; here no layer is computed for
   every token.

Both together are ⌊ratio · n⌋ rows, computed from the embedding through all layers; first tokens
take at most half of them. A first document that was precomputed behind the instruction gets none:
its KV already is that of a full prefill.

The question's rows run a second time with these, over what was repaired, but not through the first
layers: there they attend to their neighbours, and keep what the first pass gave them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from service.parameters import parameter
from service.worker.core.layer_view import AttentionScores, LayerView
from service.worker.core.layout import PromptLayout
from service.worker.core.topk import stable_topk
from service.worker.methods.bases.dense import RowWeights
from service.worker.methods.bases.fusion import share_of
from service.worker.methods.bases.two_pass import TwoPassMethod


@dataclass(frozen=True)
class Method(TwoPassMethod):
    """Recompute the first tokens of every document and those the question attends to in a first
    pass over the cache, ranked over all layers; no layer is computed for every token."""

    ratio: float = parameter(
        0.15, "share of the prompt's tokens to recompute", ge=0, le=1, auto=True
    )
    edge: int = parameter(
        2, "first tokens of every document, charged to ratio, at most half of it", ge=0
    )
    question: float = parameter(
        0.5, "weight of the mean question row beside the last one", ge=0, le=100
    )
    again_from: float = parameter(
        0.33,
        "share of the layers, from the first, in which the question is not computed a second time",
        ge=0,
        le=0.9,
    )

    def reused_question_layers(self, layers: int) -> int:
        return min(round(self.again_from * layers), self.question_pass_layers(layers).stop - 1)

    def question_row_weights(self, layer: int, layout: PromptLayout) -> RowWeights:
        rows = layout.question_rows
        return (rows == layout.tokens - 1).float() + self.question / len(rows)

    def rows_after_question_pass(
        self, layout: PromptLayout, scores: AttentionScores, layers: int
    ) -> Tensor:
        wanted = share_of(layout, self.ratio)
        return self._best(layout, layout.stale_document_rows, scores.question, wanted)

    def ranking(self, view: LayerView) -> Tensor | None:
        if view.layer > 0 or view.attention_scores is None:
            return None
        return view.attention_scores.question

    def _best(
        self, layout: PromptLayout, candidates: Tensor, scores: Tensor, wanted: int
    ) -> Tensor:
        """`wanted` of the candidates: first tokens of documents, at most half of them, then those
        with the highest scores. One stable ranking, so that ties go to the lower index."""
        rank = scores.clone()
        rank[self._first_tokens(layout)[: wanted // 2]] = float("inf")
        return candidates[stable_topk(rank[candidates], wanted)]

    def _first_tokens(self, layout: PromptLayout) -> Tensor:
        """The `edge` first tokens of every document: first of all documents the first one, then
        the second ones, and so on."""
        documents = layout.stale_documents
        longest = max((s.tokens for s in documents), default=0)
        rows = [
            s.start + depth
            for depth in range(min(self.edge, longest))
            for s in documents
            if depth < s.tokens
        ]
        return torch.tensor(rows, dtype=torch.long, device=layout.ids.device)
