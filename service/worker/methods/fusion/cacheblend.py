"""CacheBlend: recomputes the document tokens whose stored KV is farthest from the exact one, which
is computed for all rows up to `check_layer`. With a `schedule`, the paper's gradual filtering, the
remaining rows are ranked again at as many layers as it has entries.

Source: docs/specification.md §1.3; Yao et al. 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.shared.parameters import parameter
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.dense import DenseMethod
from kvstitch.service.worker.methods.bases.fusion import share_of
from kvstitch.service.worker.methods.layer_view import LayerView
from kvstitch.service.worker.methods.scores import stable_topk
from kvstitch.service.worker.methods.stored_kv import squared_deviation
from kvstitch.service.worker.model.model_facts import ModelFacts


@dataclass(frozen=True)
class Method(DenseMethod):
    """Recompute the document tokens whose stored KV differs most from the true one, measured at
    one early layer; the question plays no part in the choice."""

    ratio: float = parameter(
        0.15, "share of the prompt's tokens to recompute", ge=0, le=1, auto=True
    )
    metric: str = parameter("V", "deviation of values or of keys", choices=("V", "K"))
    check_layer: int = parameter(
        1, "layer at which deviation is measured (paper: 1)", ge=1, layer=True
    )
    schedule: tuple[float, ...] = parameter(
        (),
        "shares of the prompt that go on from check_layer and the layers after it, not increasing, "
        "instead of ratio (the paper's gradual filtering)",
        ge=0,
        le=1,
    )

    def __post_init__(self) -> None:
        if list(self.schedule) != sorted(self.schedule, reverse=True):
            raise InvalidRequest(
                f"fusion.schedule must not increase, unlike {list(self.schedule)}",
                field="fusion.schedule",
            )

    @property
    def layers_without_cache(self) -> int:
        return self.check_layer

    @property
    def full_layers(self) -> int:
        return self.check_layer

    def is_quiet(self, layer: int) -> bool:
        return not 0 <= layer - self.check_layer < max(1, len(self.schedule))

    def reads_replaced(self, layer: int) -> bool:
        return layer == self.check_layer and self.metric == "V"

    def check(self, model: ModelFacts) -> None:
        self.check_layer_exists("check_layer", self.check_layer, model)

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return layout.all_rows

    def select(self, view: LayerView) -> Tensor | None:
        ratios = self.schedule or (self.ratio,)
        step = view.layer - self.check_layer
        if not 0 <= step < len(ratios):
            return None
        layout = view.layout
        candidates = layout.cached_document_rows
        if len(view.rows) < layout.tokens:
            left = torch.isin(layout.on_host(candidates), layout.on_host(view.rows))
            candidates = layout.on_device(layout.on_host(candidates)[left])
        deviation = self._deviation(view)[candidates]
        top = stable_topk(deviation, share_of(layout, ratios[step]))
        return layout.union(candidates[top], layout.question_rows)

    def ranking(self, view: LayerView) -> Tensor | None:
        return self._deviation(view) if view.layer == self.check_layer else None

    def _deviation(self, view: LayerView) -> Tensor:
        return squared_deviation(view, keys=self.metric == "K", values=self.metric == "V")
