"""Question trail: what the question reads, and what that reads, where reuse got it wrong.

kvstitch's own method, `question_scout` carried on in three ways (measured, docs/quality.md):

1. Evidence is taken from the layers in which answers are read: not the first third, where
   attention is about neighbours, and not the last one. The first pass ends there.
2. The few tokens that the question reads most, the *leads*, then run over the stitched cache
   themselves. What a lead looks at counts as if the question had: a fact that is two documents
   away, which no question sees in caches that were made apart.
3. More rows than the ratio begin; at layer 1, where their own KV shows how far the stored one was
   off, those with the most evidence times deviation go on. A row that was right needs no repair;
   but a deviation that builds up in later layers does not show there, so half of the rows are
   still the question's own choice.

Rows go on so that their mean over the layers is `ratio`:

    layer          0             1              2 ... L-1
    rows    b · ratio · n   b · ratio · n   ratio · n · (L - b) / (L - 1)      computed KV
                            └ only the latter attend ┘
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from service.parameters import parameter
from service.worker.core.deviation import squared_deviation
from service.worker.core.layer_view import AttentionScores, LayerView
from service.worker.core.layout import PromptLayout
from service.worker.core.topk import stable_topk
from service.worker.methods.fusion.base import share_of
from service.worker.methods.fusion.question_scout import Method as QuestionScout

CHECK_LAYER = 1
"""The first layer whose KV depends on other tokens."""
_SHALLOW = 6
"""Layers that one more share of rows to begin with takes: a shallow model could not pay for it."""


@dataclass(frozen=True)
class Method(QuestionScout):
    """question_scout, which also follows what the tokens read by the question read themselves, and
    goes on only with rows whose stored KV was off."""

    leads: float = parameter(
        0.1, "rows that are followed, as a share of the rows to recompute", ge=0, le=1
    )
    breadth: float = parameter(
        2.0, "rows to begin with, before those that were right are left, over ratio", ge=1, le=8
    )
    sure: float = parameter(
        0.5, "share of the rows that the question's own evidence chooses, however right", ge=0, le=1
    )
    from_depth: float = parameter(
        0.33, "share of the layers, from the first, whose attention says nothing", ge=0, le=0.9
    )

    def question_pass_layers(self, layers: int) -> range:
        stop = max(1, layers - 1)
        return range(min(math.ceil(self.from_depth * layers - 1e-9), stop - 1), stop)

    def seed_rows(self, layout: PromptLayout, asked: Tensor) -> Tensor:
        candidates = layout.stale_document_rows
        wanted = share_of(layout, self.ratio * self.leads)
        if self.leads and share_of(layout, self.ratio):
            wanted = max(1, wanted)  # a short prompt has one too
        return candidates[stable_topk(asked[candidates], wanted)]

    def seed_weights(self, rows: Tensor, asked: Tensor) -> Tensor:
        return asked[rows]

    def rows_after_question_pass(
        self, layout: PromptLayout, attention_scores: AttentionScores, layers: int
    ) -> Tensor:
        wanted = share_of(layout, self._begin(layers))
        everything = self._joined(layout, attention_scores)
        return self._chosen(
            layout, layout.stale_document_rows, attention_scores.asked, everything, wanted
        )

    def ranking(self, view: LayerView) -> Tensor | None:
        if view.layer > 0 or view.attention_scores is None:
            return None
        return self._joined(view.layout, view.attention_scores)

    def select(self, view: LayerView) -> Tensor | None:
        if view.layer != CHECK_LAYER or view.attention_scores is None:
            return None
        layout, layers = view.layout, view.flops.shape.layers
        candidates = layout.stale_document_rows
        begun = candidates[torch.isin(candidates, view.rows)]
        go_on = (self.ratio * layers - self._begin(layers)) / (layers - 1)
        off = squared_deviation(view, keys=True, values=True).sqrt()
        rank = self._joined(layout, view.attention_scores) * off
        return self._chosen(
            layout, begun, view.attention_scores.asked, rank, share_of(layout, go_on)
        )

    def _chosen(
        self, layout: PromptLayout, candidates: Tensor, asked: Tensor, rank: Tensor, wanted: int
    ) -> Tensor:
        """`wanted` of the candidates: as many as `sure` says by what the question reads, first
        tokens of documents (at most half), the others by `rank`."""
        sure = self._best(layout, candidates, asked, math.floor(self.sure * wanted + 1e-9))
        return self._best(layout, candidates, rank.index_fill(0, sure, float("inf")), wanted)

    def _joined(self, layout: PromptLayout, attention_scores: AttentionScores) -> Tensor:
        """Both kinds of evidence, of the same weight over the candidates. Leads are not evidence
        for each other: all of them were read."""
        candidates = layout.stale_document_rows
        leads = self.seed_rows(layout, attention_scores.asked)
        followed = attention_scores.followed.index_fill(0, leads, 0.0)
        total = followed[candidates].sum()
        if not total > 0:
            return attention_scores.asked
        return attention_scores.asked + followed * (
            attention_scores.asked[candidates].sum() / total
        )

    def _begin(self, layers: int) -> float:
        """Share of the prompt's rows to begin with."""
        return min(1.0, self.ratio * min(self.breadth, 1 + (layers - 1) / _SHALLOW))
