"""Records what happened to every token of a prompt, for requests that want to know, as runs of
neighbouring tokens to which the same happened. Requests without a trace do no extra work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch
from torch import Tensor

from kvstitch.service.messages.reports import SegmentTrace, TokenRun, TokenTrace
from kvstitch.service.worker.layout import PromptLayout, union
from kvstitch.service.worker.methods.bases.fusion import FusionMethod
from kvstitch.service.worker.methods.layer_view import LayerView, PrefillResult
from kvstitch.service.worker.model.model_facts import FlopCount


@dataclass
class TokenTracer:
    method: FusionMethod
    layers: int
    kv_heads: int
    _rows: dict[int, Tensor] = field(default_factory=dict)
    _pass_rows: dict[int, Tensor] = field(default_factory=dict)
    _scores: dict[int, Tensor] = field(default_factory=dict)
    _planned: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]] | None = None
    _layout: PromptLayout | None = None
    _recomputed: Tensor | None = None
    _computed: Tensor | None = None
    _entries: Tensor | None = None
    _evicted: dict[int, Sequence[Tensor]] = field(default_factory=dict)

    # -- recording --------------------------------------------------------------------------------

    def capture(self, view: LayerView) -> None:
        """Record a layer of the loop: its rows, and the scores by which the method ranks there."""
        # Rows of an attention pass have the KV from that pass, if they are not computed again.
        passed = self._pass_rows.get(view.layer, view.rows[:0])
        self._rows[view.layer] = union(view.rows, passed)
        # A FLOP count of its own, because this ranking is not work of the prompt.
        ranked = self.method.ranking(replace(view, flops=FlopCount(view.flops.shape)))
        if ranked is not None:
            self._scores[view.layer] = ranked

    def on_pass(self, layer: int, rows: Tensor) -> None:
        """Record the rows that an attention pass computed at a layer."""
        before = self._pass_rows.get(layer, rows[:0])
        self._pass_rows[layer] = union(before, rows)

    def start_again(self) -> None:
        """Note that the prefill starts or is resumed."""
        self._pass_rows.clear()

    def planned(self, fresh: Sequence[Sequence[int]], kept: Sequence[Sequence[int]]) -> None:
        """Record which tokens a method that holds a part computes and holds, per layer."""
        self._planned = fresh, kept

    def prefilled(self, layout: PromptLayout, result: PrefillResult) -> None:
        """Record the result of the prefill; `layout` is that of the original prompt."""
        n, device = layout.tokens, layout.ids.device
        self._layout = layout
        counts = torch.zeros(n, dtype=torch.long, device=device)
        computed, everywhere = counts.clone(), self.layers * self.kv_heads
        if self._planned is not None:
            question = layout.question_rows
            entries = counts.clone()
            for fresh, kept in zip(*self._planned, strict=True):
                computed[fresh] += 1
                entries[kept] += self.kv_heads
            computed[question], entries[question] = self.layers, everywhere
            self._entries = entries
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
        """Record the token indices per KV head that a layer keeps after eviction."""
        self._evicted[layer] = kept

    # -- reporting --------------------------------------------------------------------------------

    def report(self) -> TokenTrace | None:
        """Return the trace; None if the prefill was never finished."""
        layout = self._layout
        if layout is None or self._recomputed is None or self._computed is None:
            return None
        columns = (self._recomputed, self._computed, self._held_entries())
        tokens = list(zip(*(column.tolist() for column in columns), strict=True))
        scores = None
        if self._scores:
            scores = self._scores[min(self._scores)].float().tolist()

        def segment(start: int, end: int, ranked: bool) -> SegmentTrace:
            own = scores[start:end] if scores is not None and ranked else None
            rounded = None if own is None else [float(f"{score:.3g}") for score in own]
            return SegmentTrace(list(_runs(tokens[start:end])), rounded)

        segments = layout.segments[: len(layout.segments) - layout.history]
        system, *documents = [segment(s.start, s.end, not s.uncached) for s in segments]
        return TokenTrace(
            self.layers,
            self.kv_heads,
            # Methods rank only document tokens.
            replace(system, scores=None),
            documents,
            segment(layout.history_start, layout.tokens, False),
        )

    def _held_entries(self) -> Tensor:
        """Return KV entries of every token over all layers and KV heads, `[n]`."""
        assert self._entries is not None
        if not self._evicted:
            return self._entries
        entries = torch.zeros_like(self._entries)
        for kept in self._evicted.values():
            tokens = torch.cat(list(kept))
            entries.index_add_(0, tokens, torch.ones_like(tokens))
        return entries


def _runs(tokens: Sequence[tuple[bool, int, int]]) -> Iterator[TokenRun]:
    for (recomputed, computed_layers, entries), alike in groupby(tokens):
        yield TokenRun(sum(1 for _ in alike), recomputed, computed_layers, entries)
