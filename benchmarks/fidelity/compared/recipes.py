"""Ablations of question_scout that need the prompt to choose their method, or prefill twice.

Each ranks tokens, mostly by the engine's own question pass, and then prefills with fixed rows. The
question pass and the prefill both place the cached KV, which a real method would do once: measured
seconds are therefore too long, but operations are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.fidelity.compared.picking import Pick
from benchmarks.fidelity.compared.variants import ScoutVariant, answer_rows, random_ranks
from service.tuning.measuring.case import Case
from service.worker.methods.api import (
    AttentionScores,
    CachedSegment,
    DenseMethod,
    LayerView,
    PrefillResult,
    PromptLayout,
    RowWeights,
    TwoPassMethod,
    union,
)


@dataclass(frozen=True, eq=False)
class PlannedRows(DenseMethod):
    """Recomputes rows that are fixed in advance.

    Attributes:
        start: rows that are computed from the embedding on.
        plan: (layer, rows) pairs: only these rows go on from that layer's attention. Their KV at
            that layer is still computed together with the other rows'.
    """

    start: Tensor
    plan: tuple[tuple[int, Tensor], ...] = ()

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return self.start

    def select(self, view: LayerView) -> Tensor | None:
        return dict(self.plan).get(view.layer)


@dataclass(frozen=True)
class Oracle:
    """Edges, and the tokens that the question attends to most in full prefill.

    This is what a perfect question pass would choose. Its cost does not include the ranking.
    """

    pick: Pick

    def run(self, case: Case) -> PrefillResult:
        return case.prefill(PlannedRows(self.pick.rows(case.layout, case.attention_scores)))


@dataclass(frozen=True)
class RandomEvidence:
    """Edges and random tokens, without a question pass."""

    pick: Pick
    seed: int = 0

    def run(self, case: Case) -> PrefillResult:
        ranks = random_ranks(case.layout, self.seed)
        return case.prefill(PlannedRows(self.pick.rows(case.layout, ranks)))


@dataclass(frozen=True)
class ValueWeighted:
    """Ranks by attention times the norm of the stored value, head by head."""

    pick: Pick

    def run(self, case: Case) -> PrefillResult:
        attention_scores, flops = case.question_scores(_TimesNorms(_value_norms(case)))
        result = case.prefill(PlannedRows(self.pick.rows(case.layout, attention_scores)))
        return replace(result, flops=result.flops + flops)


@dataclass(frozen=True)
class ExactFirstLayer:
    """Computes layer 0 for all tokens, so that K and V of layer 1 are exact; then chosen rows."""

    pick: Pick

    def run(self, case: Case) -> PrefillResult:
        attention_scores, flops = case.question_scores(ScoutVariant(self.pick))
        rows = self.pick.rows(case.layout, attention_scores)
        result = case.prefill(PlannedRows(case.layout.all_rows, ((1, rows),)))
        return replace(result, flops=result.flops + flops)


@dataclass(frozen=True)
class Tapered:
    """Computes fewer rows from layer to layer.

    The number of rows falls linearly from `start` times the budget at layer 0 to `end` times at
    the last layer. Rows are dropped from the end of the ranking, so the rows of every layer are
    among those of the layer before, which they need for their hidden states.
    """

    pick: Pick
    start: float = 1.5
    end: float = 0.5

    def run(self, case: Case) -> PrefillResult:
        attention_scores, flops = case.question_scores(ScoutVariant(self.pick))
        last = case.adapter.layers - 1
        by_layer = [
            self._rows(
                case.layout, attention_scores, self.start + (self.end - self.start) * layer / last
            )
            for layer in range(last + 1)
        ]
        result = case.prefill(PlannedRows(by_layer[0], tuple(enumerate(by_layer))))
        return replace(result, flops=result.flops + flops)

    def _rows(self, layout: PromptLayout, attention_scores: Tensor, factor: float) -> Tensor:
        return replace(self.pick, ratio=self.pick.ratio * factor).rows(layout, attention_scores)


@dataclass(frozen=True)
class TwoRounds:
    """Repairs in two rounds, each after a question pass over the cache as it is then.

    The first round repairs half of the budget, edges included. The second repairs the other half;
    it does not compute the rows of the first again.
    """

    pick: Pick

    def run(self, case: Case) -> PrefillResult:
        half = replace(self.pick, ratio=self.pick.ratio / 2)
        fresh: list[tuple[Tensor, Tensor]] = []

        def keep(view: LayerView) -> None:
            fresh.append((view.fresh_k.clone(), view.fresh_v.clone()))

        first = case.prefill(ScoutVariant(half), capture=keep)
        repaired = [
            None if stored is None else _Repaired(stored, segment.start, first.rows, fresh)
            for segment, stored in zip(case.layout.segments, case.segments, strict=True)
        ]
        done = first.rows[first.rows < case.layout.question_start]
        second = case.prefill(_Besides(half, done), segments=repaired)
        rows = union(first.rows, second.rows)
        return replace(second, rows=rows, flops=first.flops + second.flops)


@dataclass(frozen=True, eq=False)
class _Besides(TwoPassMethod):
    """The rows that the question attends to most, except those in `done`; no edges."""

    pick: Pick
    done: Tensor

    def question_row_weights(self, layer: int, layout: PromptLayout) -> RowWeights:
        return lambda weights, rows: answer_rows(weights).sum(0)

    def rows_after_question_pass(
        self, layout: PromptLayout, scores: AttentionScores, layers: int
    ) -> Tensor:
        left = scores.question.clone()
        left[self.done] = -1.0
        return replace(self.pick, first=0, last=0).rows(layout, left)


class _Repaired:
    """A stored segment in which the prompt rows `rows` are replaced by computed ones."""

    def __init__(
        self,
        stored: CachedSegment,
        start: int,
        rows: Tensor,
        fresh: Sequence[tuple[Tensor, Tensor]],
    ) -> None:
        self._stored, self._start, self._rows, self._fresh = stored, start, rows, fresh

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        k, v = (x.clone() for x in self._stored.layer(layer))
        inside = (self._rows >= self._start) & (self._rows < self._start + len(k))
        at = self._rows[inside] - self._start
        fresh_k, fresh_v = self._fresh[layer]
        k[at], v[at] = fresh_k[inside], fresh_v[inside]
        return k, v


@dataclass(frozen=True, eq=False)
class _TimesNorms(TwoPassMethod):
    """Attention times given norms: for each layer `[heads, n]`."""

    norms: list[Tensor]

    def question_row_weights(self, layer: int, layout: PromptLayout) -> RowWeights:
        norms = self.norms[layer]
        return lambda weights, rows: (answer_rows(weights) * norms).sum(0)


def _value_norms(case: Case) -> list[Tensor]:
    """Norms of the stored values, for each layer `[heads, n]`; zero where nothing is stored."""
    adapter, norms = case.adapter, []
    for layer in range(adapter.layers):
        found = torch.zeros(adapter.kv_heads, case.layout.tokens, device=adapter.device)
        for segment, stored in zip(case.layout.segments, case.segments, strict=True):
            if stored is not None:
                _, v = stored.layer(layer)
                found[:, segment.start : segment.end] = v.float().norm(dim=-1).T
        norms.append(found.repeat_interleave(adapter.heads // adapter.kv_heads, dim=0))
    return norms
