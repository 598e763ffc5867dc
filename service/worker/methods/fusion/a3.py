"""A3: recomputes the document tokens that the question attends to most at one early layer. Rows up
to `selection_layer` are all computed, so what is ranked there is exact; behind it only the chosen
rows and the question are, whose KV overwrites the cached one.

Source: docs/specification.md §1.5; Zhou et al., "A³: Attention-Aware Accurate KV Cache Fusion".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch.service.shared.parameters import parameter
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.dense import DenseMethod
from kvstitch.service.worker.methods.bases.fusion import share_of
from kvstitch.service.worker.methods.layer_view import LayerView
from kvstitch.service.worker.methods.scores import stable_topk
from kvstitch.service.worker.model.attention import attend_with_scores
from kvstitch.service.worker.model.model_facts import ModelFacts


@dataclass(frozen=True)
class Method(DenseMethod):
    """Recompute the document tokens that the question attends to most, ranked at one early layer
    whose keys and queries are exact."""

    ratio: float = parameter(
        0.15, "share of the prompt's tokens to recompute", ge=0, le=1, auto=True
    )
    selection_layer: int = parameter(
        1, "layer at which tokens are ranked (paper: 1)", ge=1, layer=True
    )

    @property
    def layers_without_cache(self) -> int:
        return self.selection_layer + 1

    @property
    def full_layers(self) -> int:
        return self.selection_layer

    def is_quiet(self, layer: int) -> bool:
        return layer != self.selection_layer

    def check(self, model: ModelFacts) -> None:
        self.check_layer_exists("selection_layer", self.selection_layer, model)

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return layout.all_rows

    def select(self, view: LayerView) -> Tensor | None:
        if view.layer != self.selection_layer:
            return None
        layout = view.layout
        candidates = layout.cached_document_rows
        wanted = share_of(layout, self.ratio)
        top = stable_topk(self._question_attention(view)[candidates], wanted)
        return layout.union(candidates[top], layout.question_rows)

    def ranking(self, view: LayerView) -> Tensor | None:
        return self._question_attention(view) if view.layer == self.selection_layer else None

    def _question_attention(self, view: LayerView) -> Tensor:
        """s(t) of docs/specification.md §1.5 step 3: `[n]` fp32, summed over question rows and
        query heads."""
        start = view.layout.question_start
        # All rows are computed at this layer, so a row's place in the view is its prompt index.
        rows = view.layout.question_rows
        view.flops.score_causally(view.layout.on_host(rows))
        every_row = torch.ones(len(rows), device=rows.device)
        q = view.q[start:]
        scores = attend_with_scores(q, view.k, view.v, rows, every_row, view.scale, rule=view.rule)[
            1
        ]
        return scores
