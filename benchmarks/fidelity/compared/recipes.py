"""Ablations of question_scout that have to see the prompt first, or run the loop twice.

Each ranks by the engine's own first pass (or by something else), then prefills with rows laid down
in advance. The first pass and the prefill place the cache twice, which a method proper would not:
seconds are too long, operations are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.fidelity.case import Case
from benchmarks.fidelity.compared.picking import Pick
from benchmarks.fidelity.compared.variants import ScoutVariant, answer_rows, random_ranks
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
    """Rows laid down in advance: `plan[l]` go on from layer l's attention (KV of layer l is still
    computed for those before them). `start` rows are computed from the embedding on."""

    start: Tensor
    plan: tuple[tuple[int, Tensor], ...] = ()

    def start_rows(self, layout: PromptLayout) -> Tensor:
        return self.start

    def select(self, view: LayerView) -> Tensor | None:
        return dict(self.plan).get(view.layer)


@dataclass(frozen=True)
class Oracle:
    """Edges and the tokens that *full prefill's* question attends to most: what a perfect first
    pass would choose. It costs what it says only because the ranking is given."""

    pick: Pick

    def run(self, case: Case) -> PrefillResult:
        return case.prefill(PlannedRows(self.pick.rows(case.layout, case.attention_scores)))


@dataclass(frozen=True)
class RandomEvidence:
    """Edges and random tokens, without a first pass."""

    pick: Pick
    seed: int = 0

    def run(self, case: Case) -> PrefillResult:
        ranks = random_ranks(case.layout, self.seed)
        return case.prefill(PlannedRows(self.pick.rows(case.layout, ranks)))


@dataclass(frozen=True)
class ValueWeighted:
    """Attention times the norm of the stored value it weights, head by head."""

    pick: Pick

    def run(self, case: Case) -> PrefillResult:
        attention_scores, flops = case.question_scores(_TimesNorms(_value_norms(case)))
        result = case.prefill(PlannedRows(self.pick.rows(case.layout, attention_scores)))
        return replace(result, flops=result.flops + flops)


@dataclass(frozen=True)
class ExactFirstLayer:
    """Layer 0 for every token, so that K and V of layer 1 are exact; rows by the first pass."""

    pick: Pick

    def run(self, case: Case) -> PrefillResult:
        attention_scores, flops = case.question_scores(ScoutVariant(self.pick))
        rows = self.pick.rows(case.layout, attention_scores)
        result = case.prefill(PlannedRows(case.layout.all_rows, ((1, rows),)))
        return replace(result, flops=result.flops + flops)


@dataclass(frozen=True)
class Tapered:
    """`start` times the budget at layer 0, then linearly to `end` times at the last layer: rows are
    dropped from the end of the ranking, so every layer's are among those of the layer before.
    (More rows later than earlier cannot be: a row needs its hidden state.)"""

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
    """Scout, repair half of the budget (edges among it), scout again over the repaired cache,
    repair the other half. Rows of the first half are not computed again."""

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
    """The rows that a first pass looks at most, of those not `done`; edges are not asked for."""

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
    """A stored segment with the rows `rows` (of the prompt) replaced by those just computed."""

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
    """norms: per layer `[heads, n]`."""

    norms: list[Tensor]

    def question_row_weights(self, layer: int, layout: PromptLayout) -> RowWeights:
        norms = self.norms[layer]
        return lambda weights, rows: (answer_rows(weights) * norms).sum(0)


def _value_norms(case: Case) -> list[Tensor]:
    """Per layer `[heads, n]`: norms of the stored values, zero where nothing is stored."""
    adapter, norms = case.adapter, []
    for layer in range(adapter.layers):
        found = torch.zeros(adapter.kv_heads, case.layout.tokens, device=adapter.device)
        for segment, stored in zip(case.layout.segments, case.segments, strict=True):
            if stored is not None:
                _, v = stored.layer(layer)
                found[:, segment.start : segment.end] = v.float().norm(dim=-1).T
        norms.append(found.repeat_interleave(adapter.heads // adapter.kv_heads, dim=0))
    return norms
