"""Recomputes what the prompt's last token attends to: a two-pass method of the operator's own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvstitch.service.worker.methods.api import (
    LayerView,
    PromptLayout,
    TwoPassMethod,
    parameter,
    share_of,
    stable_topk,
)


@dataclass(frozen=True)
class Method(TwoPassMethod):
    """Recompute the document tokens to which the prompt's last token pays most attention."""

    share: float = parameter(0.2, "share of the prompt to recompute", ge=0, le=1, auto=True)

    def question_row_weights(self, layer: int, layout: PromptLayout) -> Tensor:
        return (layout.question_rows == layout.tokens - 1).float()

    def rows_after_question_pass(self, layout: PromptLayout, scores: Tensor) -> Tensor:
        candidates = layout.cached_document_rows
        wanted = share_of(layout, self.share)
        return candidates[stable_topk(scores[candidates], wanted)]

    def ranking(self, view: LayerView) -> Tensor | None:
        return view.attention_scores if view.layer == 0 else None
