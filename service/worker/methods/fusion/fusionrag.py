"""FusionRAG: recomputes what the question attends to in the last layer.

    question pass   the question runs over the stitched cache; a token's score is the sum over the
                    question's rows of the attention it receives in the last layer
    layers          the best ⌊ratio · |D|⌋ document tokens and the question

This is the paper's online step. Its offline step, to let every chunk see its neighbours before it
is stored, is the prefix mode `neighbours`, which every other method can use as well.

Source:
    docs/specification.md §1.10; "FusionRAG", arXiv 2601.12904. Whether heads are summed, over which
    keys attention is shared, and what the question has seen are not said: here it is their mean,
    all keys, and the stitched cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.shared.parameters import parameter
from service.worker.methods.bases.dense import QuestionRankedMethod


@dataclass(frozen=True)
class Method(QuestionRankedMethod):
    """Recompute the document tokens that the question attends to most in the last layer of a pass
    over the cache; meant for chunks that are precomputed behind their neighbours."""

    ratio: float = parameter(
        0.15, "share of the documents' tokens to recompute", ge=0, le=1, auto=True
    )

    def question_pass_layers(self, layers: int) -> range:
        return range(layers - 1, layers)
