"""Random rows: the baseline that every choice of rows has to beat. Not a method to serve with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from service.shared.parameters import parameter
from service.worker.methods.api import DenseMethod, LayerView, PromptLayout, share_of, union


@dataclass(frozen=True)
class Method(DenseMethod):
    """Recompute document tokens drawn at random, the same ones for the same prompt."""

    ratio: float = parameter(
        0.15, "share of the prompt's tokens to recompute", ge=0, le=1, auto=True
    )
    exact_layers: int = parameter(
        0, "layers computed for every token first, as A3 and CacheBlend do", ge=0
    )
    seed: int = parameter(0, "of the draw", ge=0, le=2**31 - 1)

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return layout.all_rows if self.exact_layers else self._drawn(layout)

    def select(self, view: LayerView) -> Tensor | None:
        return self._drawn(view.layout) if view.layer == self.exact_layers - 1 else None

    def _drawn(self, layout: PromptLayout) -> Tensor:
        source = torch.Generator().manual_seed(self.seed + int(layout.ids.sum()))
        candidates = layout.cached_document_rows
        order = torch.randperm(len(candidates), generator=source).to(candidates.device)
        return union(candidates[order[: share_of(layout, self.ratio)]], layout.question_rows)
