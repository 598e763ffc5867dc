"""Fusion methods that exist only to be measured: baselines, question_scout with other rankings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.fidelity.compared.picking import Pick
from service.worker.api import CacheBlend
from service.worker.methods.api import (
    AttentionScores,
    DenseMethod,
    LayerView,
    PromptLayout,
    RowWeights,
    TwoPassMethod,
    attention_probabilities,
    share_of,
    union,
)


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
        order = random_ranks(layout, self.seed)[candidates].argsort(descending=True)
        return union(candidates[order[: share_of(layout, self.ratio)]], layout.question_rows)


def random_ranks(layout: PromptLayout, seed: int) -> Tensor:
    """Distinct numbers `[n]` that depend only on the prompt's ids and `seed`."""
    source = torch.Generator().manual_seed(seed + int(layout.ids.sum()))
    return torch.randperm(layout.tokens, generator=source).to(layout.ids.device).float()


def answer_rows(weights: Tensor) -> Tensor:
    """Attention `[heads, m, n]` of the question rows → `[heads, n]`, weighed as in question_scout.

    That is the last row's attention plus half the mean of all rows'.
    """
    return weights[:, -1] + 0.5 * weights.mean(1)


@dataclass(frozen=True)
class ScoutVariant(TwoPassMethod):
    """question_scout with another ranking or choice.

    The question must fit into one tile (`service.worker.model.attention.ROW_TILE`).

    Attributes:
        pick: how rows are chosen from the scores.
        layers: whose attention counts; None for all.
        heads: "sum" or "max" over a layer's query heads, or "only" for the sum over `chosen`.
        chosen: (layer, head) pairs.
        question_rows: "answer" for the last row plus half the mean, as in question_scout; "sum",
            "max", or "last" for the last row alone.
    """

    pick: Pick
    layers: tuple[int, ...] | None = None
    heads: str = "sum"
    chosen: tuple[tuple[int, int], ...] = ()
    question_rows: str = "answer"

    def question_row_weights(self, layer: int, layout: PromptLayout) -> RowWeights:
        return lambda weights, rows: self._scores(layer, weights)

    def _scores(self, layer: int, weights: Tensor) -> Tensor | None:
        """Scores `[n]` from the question rows' attention `[heads, m, n]` at a layer."""
        if self.layers is not None and layer not in self.layers:
            return None
        if self.heads == "only":
            heads = [head for of, head in self.chosen if of == layer]
            if not heads:
                return None
            weights = weights[heads]
        by_head = {
            "answer": lambda: answer_rows(weights),
            "sum": lambda: weights.sum(1),
            "max": lambda: weights.amax(1),
            "last": lambda: weights[:, -1],
        }[self.question_rows]()
        return by_head.amax(0) if self.heads == "max" else by_head.sum(0)

    def rows_after_question_pass(
        self, layout: PromptLayout, scores: AttentionScores, layers: int
    ) -> Tensor:
        return self.pick.rows(layout, scores.question)


@dataclass(frozen=True)
class AttendedDeviation(CacheBlend):
    """CacheBlend, but tokens are ranked by deviation times the attention of exact question rows."""

    def _deviation(self, view: LayerView) -> Tensor:
        start = view.layout.question_start
        rows = view.rows[start:]
        weights = attention_probabilities(view.q[start:], view.k, rows, view.scale)
        view.flops.score(float(len(rows)) * view.layout.tokens)
        return super()._deviation(view) * weights.sum((0, 1))
