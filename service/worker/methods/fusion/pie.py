"""PIE: cached keys are rotated to their positions in the prompt; only the question is computed.
With `exact_layers` = 2 it is what A3 must equal at ratio 0 (docs/specification.md §1.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvstitch.service.errors import InvalidRequest
from kvstitch.service.shared.parameters import parameter
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.dense import DenseMethod
from kvstitch.service.worker.methods.layer_view import LayerView
from kvstitch.service.worker.model.model_facts import ModelFacts


@dataclass(frozen=True)
class Method(DenseMethod):
    """Positions recovered, nothing recomputed but the question: the cheapest reuse."""

    passes_states: ClassVar[bool] = True

    exact_layers: int = parameter(0, "layers whose KV is computed for every token", ge=0)

    def check(self, model: ModelFacts) -> None:
        if model.stateful and self.exact_layers:
            raise InvalidRequest(
                "fusion.exact_layers must be 0 for this model, whose layers keep a state",
                field="fusion.exact_layers",
            )

    @property
    def layers_without_cache(self) -> int:
        return self.exact_layers

    @property
    def full_layers(self) -> int:
        return max(0, self.exact_layers - 1)

    def is_quiet(self, layer: int) -> bool:
        return layer != self.exact_layers - 1

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return layout.all_rows if self.exact_layers else layout.question_rows

    def select(self, view: LayerView) -> Tensor | None:
        # The KV of layer e-1 needs only the outputs of layer e-2, so at layer e-1 no row but the
        # question's needs attention.
        return view.layout.question_rows if view.layer == self.exact_layers - 1 else None
