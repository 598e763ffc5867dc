"""PIE (METHODS §1.2): cached keys rotated to their global positions, only the question computed.

`exact_layers` = e computes the KV of the first e layers for every token: with e = 2 it is the
reference that A3 at ratio 0 must equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from service.parameters import parameter
from service.worker.core.layer_view import LayerView
from service.worker.core.layout import PromptLayout
from service.worker.methods.bases.dense import DenseMethod


@dataclass(frozen=True)
class Method(DenseMethod):
    """Positions recovered, nothing recomputed but the question: the cheapest reuse."""

    exact_layers: int = parameter(0, "layers whose KV is computed for every token", ge=0)

    @property
    def layers_without_cache(self) -> int:
        return self.exact_layers

    @property
    def full_layers(self) -> int:
        return max(0, self.exact_layers - 1)

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return layout.all_rows if self.exact_layers else layout.question_rows

    def select(self, view: LayerView) -> Tensor | None:
        # KV of layer e-1 needs outputs up to layer e-2 only, so attention is for the question.
        return view.layout.question_rows if view.layer == self.exact_layers - 1 else None
