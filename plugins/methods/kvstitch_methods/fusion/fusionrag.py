"""FusionRAG: recomputes what the question attends to in the last layer of a pass over the stitched
cache. The paper's offline step, to let every chunk see its neighbours before it is stored, is the
prefix mode `neighbours`.

Source: docs/specification.md §1.10; "FusionRAG", arXiv 2601.12904. Not said there, and chosen:
scores are means over heads, over all keys, of a question that has seen the stitched cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstitch_methods.fusion.question_ranked import QuestionRankedMethod
from service.worker.methods.api import parameter


@dataclass(frozen=True)
class Method(QuestionRankedMethod):
    """Recompute the document tokens that the question attends to most in the last layer of a pass
    over the cache; meant for chunks that are precomputed behind their neighbours."""

    ratio: float = parameter(
        0.15, "share of the documents' tokens to recompute", ge=0, le=1, auto=True
    )

    def question_pass_layers(self, layers: int) -> range:
        return range(layers - 1, layers)
