"""The base of methods that rank document tokens by the question's attention."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from service.worker.methods.api import (
    LayerView,
    PromptLayout,
    PromptShape,
    TwoPassMethod,
    floor_share,
    stable_topk,
)


@dataclass(frozen=True)
class QuestionRankedMethod(TwoPassMethod):
    """Base of published methods that compute the ⌊ratio · |D|⌋ document tokens that the question
    attends to most. They differ in what the question has seen, in the layers that count, and in
    how many rows they compute. A subclass has the parameter `ratio`."""

    @property
    def document_ratio(self) -> float:
        """Share of the documents' tokens that are computed anew."""
        assert self.repair_ratio is not None, "a subclass has a repair parameter"
        return self.repair_ratio

    def recomputed_tokens(self, shape: PromptShape) -> int:
        return floor_share(sum(shape.documents), self.document_ratio)

    def rows_after_question_pass(self, layout: PromptLayout, scores: Tensor) -> Tensor:
        candidates = layout.cached_document_rows
        wanted = floor_share(len(candidates), self.document_ratio)
        return candidates[stable_topk(scores[candidates], wanted)]

    def ranking(self, view: LayerView) -> Tensor | None:
        return view.attention_scores if view.layer == 0 else None


def last_layers(layers: int, first: int, count: int) -> range:
    """Return the `count` layers from `first` on; of a model with fewer layers, its last ones."""
    stop = min(first + count, layers)
    return range(max(0, stop - count), stop)
