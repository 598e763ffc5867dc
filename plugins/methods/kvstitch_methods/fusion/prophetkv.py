"""ProphetKV: recomputes what the question attends to: Σ over layers, heads and question rows of the
softmax over document keys, while its rows attend only to one another.

Source: docs/specification.md §1.10; "ProphetKV", arXiv 2602.02579. The paper does not say what the
question has seen when it is asked: `probe` and `keys` are the two readings of others.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstitch_methods.fusion.question_ranked import QuestionRankedMethod
from service.worker.methods.api import PromptLayout, Sight, parameter


@dataclass(frozen=True)
class Method(QuestionRankedMethod):
    """Recompute the document tokens that the question attends to most over all layers, asked
    before it has seen the documents."""

    ratio: float = parameter(
        0.2, "share of the documents' tokens to recompute", ge=0, le=1, auto=True
    )
    probe: str = parameter(
        "query_only",
        "what the question sees while it is asked: itself, or the stitched documents too",
        choices=("query_only", "stitched"),
    )
    keys: str = parameter(
        "documents",
        "keys that share the question's attention: the documents' or all",
        choices=("documents", "all"),
    )

    def sight(self, layout: PromptLayout) -> Sight:
        question, documents = layout.question_rows, layout.cached_document_rows
        return Sight(
            seen=(lambda layer: question) if self.probe == "query_only" else None,
            scored=(lambda layer: documents) if self.keys == "documents" else None,
        )
