"""Fusion methods that exist only to be measured: bounds, and question_scout in other ways."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from service.worker.api import QuestionScout
from service.worker.methods.api import (
    DenseMethod,
    LayerView,
    PrefillResult,
    PromptLayout,
    share_of,
    stable_topk,
    union,
)
from tuning.case import Case


@dataclass(frozen=True)
class RandomRows(DenseMethod):
    """Recomputes ⌊ratio · n⌋ random document tokens, the same ones for the same prompt.

    The first `exact_layers` layers are computed for all tokens, as A3 and CacheBlend do.
    """

    ratio: float
    exact_layers: int = 0
    seed: int = 0

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return layout.all_rows if self.exact_layers else self._drawn(layout)

    def select(self, view: LayerView) -> Tensor | None:
        return self._drawn(view.layout) if view.layer == self.exact_layers - 1 else None

    def _drawn(self, layout: PromptLayout) -> Tensor:
        candidates = layout.cached_document_rows
        source = torch.Generator().manual_seed(self.seed + int(layout.ids.sum()))
        ranks = torch.randperm(layout.tokens, generator=source).to(layout.ids.device).float()
        order = ranks[candidates].argsort(descending=True)
        return union(candidates[order[: share_of(layout, self.ratio)]], layout.question_rows)


@dataclass(frozen=True)
class Oracle:
    """Recomputes the tokens that the question attends to most in full prefill.

    This is what a perfect question pass over all layers would choose. Its cost does not include
    the ranking.
    """

    ratio: float

    def run(self, case: Case) -> PrefillResult:
        layout = case.layout
        candidates = layout.stale_document_rows
        best = stable_topk(case.attention_scores[candidates], share_of(layout, self.ratio))
        return case.prefill(_Rows(candidates[best]))


@dataclass(frozen=True, eq=False)
class _Rows(DenseMethod):
    """Recomputes rows that are fixed in advance."""

    rows: Tensor

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return self.rows


@dataclass(frozen=True)
class WithFirstTokens(QuestionScout):
    """question_scout, with the first tokens of every document before all others, as in its second
    edition; they are at most half of the rows.

    Attributes:
        first: how many tokens of a document.
    """

    first: int = 2

    def rows_after_question_pass(self, layout: PromptLayout, scores: Tensor) -> Tensor:
        documents = layout.stale_documents
        rows = [
            s.start + depth for depth in range(self.first) for s in documents if depth < s.tokens
        ]
        rank = scores.clone()
        rank[rows[: share_of(layout, self.ratio) // 2]] = float("inf")
        return super().rows_after_question_pass(layout, rank)


@dataclass(frozen=True)
class FewKeys(QuestionScout):
    """question_scout, whose computed document rows see only one another and what is exact, as in
    RelaxKV."""

    def document_keys(self, view: LayerView) -> Tensor | None:
        layout = view.layout
        stale = layout.stale_document_rows
        return layout.all_rows[~torch.isin(layout.all_rows, stale[~torch.isin(stale, view.rows)])]
