"""Question scout: recomputes the first tokens of every document and those the question attends to.

This is a method of kvstitch's own. Two kinds of rows are worth computing anew (measurements in
docs/quality.md):

1. The first tokens of every document. They were precomputed without the text before them, so they
   act as attention sinks and miss their context, whatever the question is.
2. The tokens that this question attends to. In the question pass, the question's rows run once over
   the stitched cache (this is PIE; it costs about one percent of a prefill). A token's score is the
   attention it receives, summed over all layers and query heads: that of the last row, which
   predicts the first answer token, plus half the mean of all question rows. A3 and CacheBlend rank
   tokens at a layer of which they must compute every row; here no layer is computed for every row.

Both kinds together are ⌊ratio · n⌋ rows, computed through all layers from their embeddings; first
tokens are at most half of them. A first document that was precomputed behind the instruction has
none, because its KV is already that of a full prefill.

The question's rows are computed a second time together with these rows, over the repaired cache, in
all layers. `again_from` reuses their first layers from the question pass, which saves two percent
of a prefill and costs a real model a third of what the method wins.
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
        0.0,
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
        """Picks `wanted` of the candidates: first tokens of documents, then the highest scores.

        First tokens are at most half of them. Both are ranked in one stable sort, so that ties go
        to the lower index.
        """
        rank = scores.clone()
        rank[self._first_tokens(layout)[: wanted // 2]] = float("inf")
        return candidates[stable_topk(rank[candidates], wanted)]

    def _first_tokens(self, layout: PromptLayout) -> Tensor:
        """Rows of every document's first `edge` tokens.

        First come the first tokens of all documents, then the second tokens, and so on.
        """
        documents = layout.stale_documents
        longest = max((s.tokens for s in documents), default=0)
        rows = [
            s.start + depth
            for depth in range(min(self.edge, longest))
            for s in documents
            if depth < s.tokens
        ]
        return torch.tensor(rows, dtype=torch.long, device=layout.ids.device)
