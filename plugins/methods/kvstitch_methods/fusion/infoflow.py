"""InfoFlow KV: recomputes what the question attends to, summed over four late layers of a pass over
the stitched cache. The paper also reorders the chunks by this signal, which is left out.

Source: docs/specification.md §1.10; "InfoFlow KV", arXiv 2603.05353: layers 22 to 25 of every
model. Of a model with fewer layers we take the last four.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstitch_methods.fusion.question_ranked import QuestionRankedMethod, last_layers
from service.worker.methods.api import parameter

LAYERS = 4


@dataclass(frozen=True)
class Method(QuestionRankedMethod):
    """Recompute the document tokens that the question attends to most in four late layers of a
    pass over the cache."""

    ratio: float = parameter(
        0.15, "share of the documents' tokens to recompute", ge=0, le=1, auto=True
    )
    first_layer: int = parameter(
        22, "the first of the four layers; of a model with fewer layers its last four count", ge=0
    )

    def question_pass_layers(self, layers: int) -> range:
        return last_layers(layers, self.first_layer, LAYERS)
