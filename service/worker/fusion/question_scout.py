"""Question scout: every chunk's first rows, and those a first pass of the question looks at.

kvstitch's own method. Two kinds of rows are worth computing anew (measured, docs/methods.md):

1. The first tokens of every chunk. Precomputed without what stood before them they act as attention
   sinks and miss their context, whatever the question is.
2. The tokens this question reads. The question's rows are run once over the stitched cache (PIE,
   about one percent of a prefill), and every token gets the attention it received, summed over all
   layers, query heads and question rows. Ranking at every layer needs no exact layer: A3 and
   CacheBlend compute the first one or two layers for every token to rank at one of them.

Both together are ⌊ratio · n⌋ rows, computed from the embedding through all layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from service.parameters import parameter
from service.worker.fusion.base import FusionMethod, share_of
from service.worker.layout import PromptLayout
from service.worker.topk import stable_topk


@dataclass(frozen=True)
class Method(FusionMethod):
    """Recompute the first tokens of every document and those the question attends to in a first
    pass over the cache, ranked over all layers; no layer is computed for every token."""

    scouts: ClassVar[bool] = True

    ratio: float = parameter(0.15, "share of the prompt's tokens to recompute", ge=0, le=1)
    edge: int = parameter(4, "first tokens of every document, charged to ratio", ge=0)

    def scout(self, layer: int, weights: Tensor) -> Tensor | None:
        return weights.sum((0, 1))

    def scouted_rows(self, layout: PromptLayout, evidence: Tensor) -> Tensor:
        candidates = layout.cached_document_rows
        depth = torch.cat(
            [
                torch.arange(segment.tokens, device=candidates.device)
                for segment in layout.documents
                if not segment.cold
            ]
        )
        wanted = share_of(layout, self.ratio)
        # One ranking: edges first, the shallowest of all documents before any deeper one, then
        # evidence. Evidence is a sum of softmax weights, so any edge outranks it.
        edge = min(self.edge, layout.tokens)
        edge_rank = float(evidence.max()) + (edge - depth).double()
        rank = torch.where(depth < edge, edge_rank, evidence[candidates].double())
        return candidates[stable_topk(rank, wanted)]
