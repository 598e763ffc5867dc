"""Methods for measuring only, which the service does not offer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.fusion.base import FusionMethod, share_of
from service.worker.layer_view import LayerView
from service.worker.layout import PromptLayout, union


@dataclass(frozen=True)
class RandomRows(FusionMethod):
    """Recompute ⌊ratio · n⌋ document tokens drawn at random, the same for the same prompt; with
    `exact_layers` e the layers before e are computed for every token, as A3 and CacheBlend do."""

    ratio: float
    exact_layers: int = 0
    seed: int = 0

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return layout.all_rows if self.exact_layers else self._drawn(layout)

    def select(self, view: LayerView) -> Tensor | None:
        return self._drawn(view.layout) if view.layer == self.exact_layers - 1 else None

    def _drawn(self, layout: PromptLayout) -> Tensor:
        candidates = layout.cached_document_rows
        source = torch.Generator().manual_seed(self.seed + int(layout.ids.sum()))
        order = torch.randperm(len(candidates), generator=source)[: share_of(layout, self.ratio)]
        return union(candidates[order.to(candidates.device)], layout.question_rows)
