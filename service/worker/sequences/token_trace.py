"""What became of every token of one prompt, for requests that ask for it; others pay nothing.

A tracer watches the layer loop (`capture`, `on_pass`), a sparse method's plan (`planned`) and the
eviction (`kept`), and reports runs of neighbouring tokens to which the same happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch
from torch import Tensor

from service.records import SegmentFates, TokenFates, TokenRun
from service.worker.core.flops import FlopCount
from service.worker.core.layer_view import LayerView
from service.worker.core.layout import PromptLayout, union
from service.worker.core.prefill_result import PrefillResult
from service.worker.methods.bases.fusion import FusionMethod
from service.worker.methods.sparse.plan import SparsePlan


@dataclass
class TokenTracer:
    """Traces one prompt. A prompt that is taken up again, because a stored segment was lost, goes
    through layers a second time: what was noted per layer is then replaced."""

    method: FusionMethod
    layers: int
    kv_heads: int
    _rows: dict[int, Tensor] = field(default_factory=dict)
    _pass_rows: dict[int, Tensor] = field(default_factory=dict)
    _scores: dict[int, Tensor] = field(default_factory=dict)
    _plan: SparsePlan | None = None
    _layout: PromptLayout | None = None
    _recomputed: Tensor | None = None
    _computed: Tensor | None = None
    _entries: Tensor | None = None
    _evicted: dict[int, Sequence[Tensor]] = field(default_factory=dict)

    # -- what it is told --------------------------------------------------------------------------

    def capture(self, view: LayerView) -> None:
        """A layer of the loop: its rows, and how the method ranks there."""
        # Rows of a pass before the layers keep the KV it gave them, unless they are computed again.
        passed = self._pass_rows.get(view.layer, view.rows[:0])
        self._rows[view.layer] = union(view.rows, passed)
        # Looking must not count as work of the prompt.
        ranked = self.method.ranking(replace(view, flops=FlopCount(view.flops.shape)))
        if ranked is not None:
            self._scores[view.layer] = ranked

    def on_pass(self, layer: int, rows: Tensor) -> None:
        """Rows that a pass before the layers computed at a layer."""
        before = self._pass_rows.get(layer, rows[:0])
        self._pass_rows[layer] = union(before, rows)

    def start_again(self) -> None:
        """The prompt is taken up again, with other segments computed."""
        self._pass_rows.clear()

    def planned(self, plan: SparsePlan) -> None:
        """What a sparse method holds and computes, per layer."""
        self._plan = plan

    def prefilled(self, layout: PromptLayout, result: PrefillResult) -> None:
        """The prompt of `layout` is in place."""
        n, device = layout.tokens, layout.ids.device
        self._layout = layout
        counts = torch.zeros(n, dtype=torch.long, device=device)
        computed, everywhere = counts.clone(), self.layers * self.kv_heads
        if self._plan is not None:
            question = layout.question_rows
            held = counts.clone()
            for fresh, kept in zip(self._plan.fresh, self._plan.kept, strict=True):
                computed[fresh] += 1
                held[kept] += self.kv_heads
            computed[question], held[question] = self.layers, everywhere
            self._entries = held
        elif result.kept_ids is not None:  # an eviction method started over with these
            computed[result.kept_ids] = self.layers
            counts[result.kept_ids] = everywhere
            self._entries = counts
        else:
            for rows in self._rows.values():
                computed[rows] += 1
            self._entries = counts + everywhere
        self._computed = computed
        recomputed = torch.zeros(n, dtype=torch.bool, device=device)
        recomputed[result.rows] = True
        self._recomputed = recomputed

    def kept(self, layer: int, kept: Sequence[Tensor]) -> None:
        """Token indices per KV head that a layer holds from now on."""
        self._evicted[layer] = kept

    # -- what it reports --------------------------------------------------------------------------

    def report(self) -> TokenFates | None:
        """None of a prompt that never came into place."""
        layout = self._layout
        if layout is None or self._recomputed is None or self._computed is None:
            return None
        columns = (self._recomputed, self._computed, self._held())
        tokens = list(zip(*(column.tolist() for column in columns), strict=True))
        scores = None
        if self._scores:
            scores = self._scores[min(self._scores)].float().tolist()

        def segment(start: int, end: int, ranked: bool) -> SegmentFates:
            own = scores[start:end] if scores is not None and ranked else None
            rounded = None if own is None else [float(f"{score:.3g}") for score in own]
            return SegmentFates(list(_runs(tokens[start:end])), rounded)

        system, *documents = [segment(s.start, s.end, not s.uncached) for s in layout.segments]
        return TokenFates(
            self.layers,
            self.kv_heads,
            # S competes with nobody.
            replace(system, scores=None),
            documents,
            segment(layout.question_start, layout.tokens, False),
        )

    def _held(self) -> Tensor:
        assert self._entries is not None
        if not self._evicted:
            return self._entries
        held = torch.zeros_like(self._entries)
        for kept in self._evicted.values():
            everything = torch.cat(list(kept))
            held.index_add_(0, everything, torch.ones_like(everything))
        return held


def _runs(tokens: Sequence[tuple[bool, int, int]]) -> Iterator[TokenRun]:
    for (recomputed, computed_layers, entries), alike in groupby(tokens):
        yield TokenRun(sum(1 for _ in alike), recomputed, computed_layers, entries)
