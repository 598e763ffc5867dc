"""Question trail: recomputes what the question attends to, and what those tokens attend to in turn.

This is a method of kvstitch's own. It extends `question_scout` in three ways (measurements in
docs/quality.md):

1. Scores come only from the layers in which answers are read: not from the first third, where
   attention is mostly about neighbours, and not from the last layer, before which the question
   pass ends.
2. The few tokens that the question attends to most, the *seeds*, run over the stitched cache too.
   Attention of a seed counts like attention of the question. This finds facts that are two
   documents away, which the question alone cannot see in documents that were precomputed apart.
3. More rows than `ratio` are started. At layer 1 a row's fresh KV shows how wrong the stored KV
   was, and the rows with the highest product of score and deviation continue. A row whose stored KV
   was right needs no repair. But a deviation that only builds up in later layers does not show at
   layer 1, so a share of the rows (`sure`) is chosen by the question's scores alone.

The numbers of rows are such that their mean over the layers is `ratio` (b is `breadth`):

    layer                        0               1               2 ... L-1
    rows whose KV is computed    b · ratio · n   b · ratio · n   ratio · n · (L - b) / (L - 1)

At layer 1, only the rows that continue to layer 2 are computed beyond their KV.
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
"""Layers that a model needs for each further `ratio` of rows that are started. The rows beyond the
ratio are saved again in later layers, of which a shallow model has too few."""


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
            wanted = max(1, wanted)  # at least one seed, also in a short prompt
        return candidates[stable_topk(question_scores[candidates], wanted)]

    def rows_after_question_pass(
        self, layout: PromptLayout, scores: AttentionScores, layers: int
    ) -> Tensor:
        wanted = share_of(layout, self._first_share(layers))
        rank = self._combined_scores(layout, scores)
        return self._chosen(layout, layout.stale_document_rows, scores.question, rank, wanted)

    def ranking(self, view: LayerView) -> Tensor | None:
        if view.layer > 0 or view.attention_scores is None:
            return None
        return self._combined_scores(view.layout, view.attention_scores)

    def select(self, view: LayerView) -> Tensor | None:
        if view.layer != CHECK_LAYER or view.attention_scores is None:
            return None
        layout, layers, scores = view.layout, view.flops.shape.layers, view.attention_scores
        candidates = layout.stale_document_rows
        started = candidates[torch.isin(candidates, view.rows)]
        share = (self.ratio * layers - self._first_share(layers)) / (layers - 1)
        deviation = squared_deviation(view, keys=True, values=True).sqrt()
        rank = self._combined_scores(layout, scores) * deviation
        return self._chosen(layout, started, scores.question, rank, share_of(layout, share))

    def _chosen(
        self, layout: PromptLayout, candidates: Tensor, scores: Tensor, rank: Tensor, wanted: int
    ) -> Tensor:
        """Picks `wanted` of the candidates: the share `sure` by the question's scores, the others
        by `rank`. First tokens of documents are at most half of each choice."""
        sure = self._best(layout, candidates, scores, math.floor(self.sure * wanted + 1e-9))
        return self._best(layout, candidates, rank.index_fill(0, sure, float("inf")), wanted)

    def _combined_scores(self, layout: PromptLayout, scores: AttentionScores) -> Tensor:
        """The question's scores plus the seeds', scaled to the same sum over the candidates.

        A seed's own score is not raised by other seeds: the question attends to all of them anyway.
        """
        candidates = layout.stale_document_rows
        seeds = self.seed_rows(layout, scores.question)
        from_seeds = scores.seeds.index_fill(0, seeds, 0.0)
        total = from_seeds[candidates].sum()
        if not total > 0:
            return scores.question
        return scores.question + from_seeds * (scores.question[candidates].sum() / total)

    def _first_share(self, layers: int) -> float:
        """Share of the prompt's rows that are started."""
        return min(1.0, self.ratio * min(self.breadth, 1 + (layers - 1) / _SHALLOW))
