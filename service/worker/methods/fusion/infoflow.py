"""InfoFlow KV: recomputes what the question attends to in four late layers.

    question pass   the question runs over the stitched cache, up to the last of the four layers;
                    a token's score is the sum over these layers and the question's rows of the
                    attention it receives, mean over heads
    layers          the best ⌊ratio · |D|⌋ document tokens and the question

The paper also puts the chunks in another order by this signal. That changes the prompt, so there
is nothing to compare it with, and it is left out.

Source:
    docs/specification.md §1.10; "InfoFlow KV", arXiv 2603.05353: layers 22 to 25 of every model. Of
    a model with fewer layers we take the last four.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.shared.parameters import parameter
from service.worker.methods.bases.dense import QuestionRankedMethod, last_layers

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
