"""Question trail: what the question attends to, and what that attends to, where reuse was wrong.

A method of kvstitch's own, `question_scout` carried on in three ways (measured, docs/quality.md):

1. Scores come from the layers in which answers are read: not from the first third, where attention
   is about neighbours, and not from the last one. The first pass ends there.
2. The few tokens that the question attends to most, the *seeds*, then run over the stitched cache
   themselves. What a seed attends to counts as if the question had: so a fact is found that is two
   documents away, which no question sees in caches that were made apart.
3. More rows than the ratio begin. At layer 1, where a row's own KV shows how far the stored KV was
   off, those with the highest score times deviation go on. A row whose stored KV was right needs no
   repair; but a deviation that builds up in later layers does not show there, so half of the rows
   stay the question's own choice.

Rows go on so that their mean over the layers is `ratio` (b stands for `breadth`):

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
from service.worker.methods.bases.fusion import share_of
from service.worker.methods.fusion.question_scout import Method as QuestionScout

CHECK_LAYER = 1
"""The first layer whose KV depends on other tokens."""
_SHALLOW = 6
"""Rows beyond the ratio are paid for by later layers: a shallow model has too few to pay with, so
so many layers are needed for each further `ratio` of rows that begin."""


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

    def seed_rows(self, layout: PromptLayout, question_scores: Tensor) -> Tensor:
        candidates = layout.stale_document_rows
        wanted = share_of(layout, self.ratio * self.leads)
        if self.leads and share_of(layout, self.ratio):
            wanted = max(1, wanted)  # a short prompt has one too
        return candidates[stable_topk(question_scores[candidates], wanted)]

    def rows_after_question_pass(
        self, layout: PromptLayout, scores: AttentionScores, layers: int
    ) -> Tensor:
        wanted = share_of(layout, self._first_share(layers))
        rank = self._joined(layout, scores)
        return self._chosen(layout, layout.stale_document_rows, scores.question, rank, wanted)

    def ranking(self, view: LayerView) -> Tensor | None:
        if view.layer > 0 or view.attention_scores is None:
            return None
        return self._joined(view.layout, view.attention_scores)

    def select(self, view: LayerView) -> Tensor | None:
        if view.layer != CHECK_LAYER or view.attention_scores is None:
            return None
        layout, layers, scores = view.layout, view.flops.shape.layers, view.attention_scores
        candidates = layout.stale_document_rows
        begun = candidates[torch.isin(candidates, view.rows)]
        share = (self.ratio * layers - self._first_share(layers)) / (layers - 1)
        deviation = squared_deviation(view, keys=True, values=True).sqrt()
        rank = self._joined(layout, scores) * deviation
        return self._chosen(layout, begun, scores.question, rank, share_of(layout, share))

    def _chosen(
        self, layout: PromptLayout, candidates: Tensor, scores: Tensor, rank: Tensor, wanted: int
    ) -> Tensor:
        """`wanted` of the candidates: a share of them, `sure`, by the question's own scores (first
        tokens of documents take at most half of that), the others by `rank`."""
        sure = self._best(layout, candidates, scores, math.floor(self.sure * wanted + 1e-9))
        return self._best(layout, candidates, rank.index_fill(0, sure, float("inf")), wanted)

    def _joined(self, layout: PromptLayout, scores: AttentionScores) -> Tensor:
        """The question's scores plus the seeds', which are scaled to the same sum over the
        candidates. Seeds get nothing from one another: the question attends to all of them."""
        candidates = layout.stale_document_rows
        seeds = self.seed_rows(layout, scores.question)
        from_seeds = scores.seeds.index_fill(0, seeds, 0.0)
        total = from_seeds[candidates].sum()
        if not total > 0:
            return scores.question
        return scores.question + from_seeds * (scores.question[candidates].sum() / total)

    def _first_share(self, layers: int) -> float:
        """Share of the prompt's rows that begin."""
        return min(1.0, self.ratio * min(self.breadth, 1 + (layers - 1) / _SHALLOW))
