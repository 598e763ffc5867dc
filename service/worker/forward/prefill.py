"""THE layer loop: the only place that computes a prompt's rows.

Per layer: place cached segments' KV at their positions, compute QKV of the current rows, write
theirs over it, let the fusion method choose which rows go on, attend by index, finish. Full
prefill, every fusion method and precompute are this loop with other hooks. A method that scouts has
the question run over the stitched cache first (`service.worker.forward.question_pass`).

It is a generator that pauses after every layer and, where a layer has many rows, within it, so that
the engine can put decode steps of other sequences in between and drop an aborted prompt at once.
Pauses come where they come whatever else runs: an answer never depends on company. Stored KV may
still be on its way: `arrival` waits for it before a layer looks at it. Knows no store, no socket,
no request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from service.worker.core.flops import FlopCount, causal_pairs
from service.worker.core.layer_view import CachedSegment, LayerView
from service.worker.core.layout import PromptLayout, union
from service.worker.core.steps import Steps
from service.worker.forward.kv_placement import KVPlacer, PromptKV
from service.worker.forward.layer_ops import attend_and_finish, project
from service.worker.forward.question_pass import ReusedQuestionRows, scout
from service.worker.methods.eviction.base import EvictionMethod
from service.worker.methods.fusion.base import FusionMethod
from service.worker.methods.fusion.vanilla import Method as Vanilla
from service.worker.model.adapters.base import DecoderAdapter

Capture = Callable[[LayerView], None]
Arrival = Callable[[int], Steps[None]]
"""Returns once every cached segment has this layer; yields what it waits for."""


@dataclass
class PrefillResult:
    """logits `[vocabulary]` fp32 of the first answer token; observed: per layer what the eviction
    method's `observe` gave; rows_per_layer: rows whose attention was computed; rows: the rows of
    the last layer before only the last one went on; flops: the work done.

    layout: the prompt whose KV is in place now; kept_ids: where its tokens were in the prompt that
    was asked for, None if it is that prompt (an eviction method may start over with fewer);
    held_tokens: entries per layer and KV head, None if every token of `layout` is held; coverage:
    share of the prompt's tokens that some layer holds."""

    logits: Tensor
    observed: list[Tensor]
    rows_per_layer: list[int]
    rows: Tensor
    flops: float
    layout: PromptLayout
    kept_ids: Tensor | None = None
    held_tokens: int | None = None
    coverage: float = 1.0


@dataclass
class Progress:
    """How far a prefill came with every row computed: there it can be taken up again, should a
    segment that was taken for cached turn out not to be. All rows are exact up to `layer`, so
    nothing in there depends on what was cached. flops: all work done, taken up or not."""

    layer: int = 0
    x: Tensor | None = None
    observed: list[Tensor] = field(default_factory=list)
    rows_per_layer: list[int] = field(default_factory=list)
    flops: FlopCount | None = None


def prefill(
    adapter: DecoderAdapter,
    layout: PromptLayout,
    cached: Sequence[CachedSegment | None],
    method: FusionMethod,
    kv: PromptKV,
    *,
    eviction: EvictionMethod | None = None,
    capture: Capture | None = None,
    arrival: Arrival | None = None,
    progress: Progress | None = None,
) -> Steps[PrefillResult]:
    """Run the prompt of `layout`; `cached[i]` is the stored KV of segment i, None if cold.

    `capture` sees every layer: precompute stores what was computed there. `eviction` observes
    queries, and may start over with some of the rows. `progress`: of an earlier run of this prompt
    with other segments cold, and of this one.
    """
    with KVPlacer(adapter, layout, cached, method.key_positions(layout), kv) as placement:
        return (
            yield from _prefill(
                adapter,
                layout,
                cached,
                method,
                kv,
                placement,
                eviction,
                capture,
                arrival,
                progress or Progress(),
            )
        )


def _prefill(
    adapter: DecoderAdapter,
    layout: PromptLayout,
    cached: Sequence[CachedSegment | None],
    method: FusionMethod,
    kv: PromptKV,
    placement: KVPlacer,
    eviction: EvictionMethod | None,
    capture: Capture | None,
    arrival: Arrival | None,
    progress: Progress,
) -> Steps[PrefillResult]:
    n = layout.tokens
    flops = progress.flops = progress.flops or FlopCount(adapter)
    forced, question = layout.forced_rows, layout.question_rows
    attention_scores, placed, settled = None, 0, ReusedQuestionRows(0)
    if method.scouts and len(layout.cached_document_rows):
        found = yield from scout(adapter, layout, placement, method, kv, flops, arrival)
        attention_scores, placed = found.attention_scores, found.placed
        begun = method.rows_after_question_pass(layout, attention_scores, adapter.layers)
        rows = union(begun, forced)
        partly = 0 < len(begun) < len(layout.stale_document_rows)
        if found.question.layers and partly and len(forced) == len(question):
            settled, rows, forced = found.question, begun, question[:0]
    else:
        rows = union(method.start_rows(layout), forced)
    first, x = 0, adapter.embed(layout.ids[rows])
    observed: list[Tensor] = []
    rows_per_layer: list[int] = []
    if len(rows) == n and progress.x is not None:
        first, x = progress.layer, progress.x
        observed, rows_per_layer = list(progress.observed), list(progress.rows_per_layer)
    last_layer = adapter.layers - 1
    if placed < method.layers_without_cache <= last_layer:
        placement.begin(method.layers_without_cache)
    for layer in range(first, adapter.layers):
        if len(rows) == n:
            progress.layer, progress.x = layer, x
            progress.observed, progress.rows_per_layer = list(observed), list(rows_per_layer)
        if settled.x is not None and layer == settled.layers:
            rows, forced, x = torch.cat([rows, question]), question, torch.cat([x, settled.x])
        k_all, v_all = kv.prompt_layer(layer, n)
        if arrival is not None and layer >= max(method.layers_without_cache, placed):
            yield from arrival(layer)
        if len(rows) < n and layer >= placed:
            placement.place(layer)
        q, fresh_q, k, v = yield from project(adapter, layer, x, rows, k_all, v_all)
        flops.project(len(rows))
        view = LayerView(
            layer,
            layout,
            rows,
            q,
            k_all,
            v_all,
            fresh_q,
            k,
            v,
            cached,
            adapter.scale,
            flops,
            attention_scores,
        )
        gated = view
        if layer < settled.layers and (capture is not None or eviction is not None):
            gated = view.followed_by(question, *settled.projected[layer])
        if capture is not None:
            capture(gated)
        if eviction is not None and eviction.applies(layout):
            kept = eviction.restart(gated)
            if kept is not None:
                return (yield from _start_over(adapter, layout, kept, kv, eviction, flops))
            observed.append(eviction.observe(gated))
        chosen = method.select(view)
        if chosen is not None:
            go_on = union(chosen, forced)
            x, q, rows = _restrict(x, q, rows, go_on)
        if layer == last_layer:
            # Nothing reads the other rows' outputs any more.
            final_rows, tail = rows, rows[-1:]
            x, q, rows = _restrict(x, q, rows, tail)
        rows_per_layer.append(len(rows))
        flops.attend(causal_pairs(rows))
        flops.finish(len(rows))
        x = yield from attend_and_finish(adapter, layer, x, q, rows, k_all, v_all)
        yield None
    flops.unembed(1)
    logits = adapter.logits(x)[0]
    return PrefillResult(logits, observed, rows_per_layer, final_rows, flops.total, layout)


def _start_over(
    adapter: DecoderAdapter,
    layout: PromptLayout,
    kept: Tensor,
    kv: PromptKV,
    eviction: EvictionMethod,
    flops: FlopCount,
) -> Steps[PrefillResult]:
    """Full prefill of the rows `kept` `[b]` as a prompt of their own, at positions 0..b-1."""
    shorter = layout.only(kept)
    result = yield from prefill(adapter, shorter, [None] * len(shorter.segments), Vanilla(), kv)
    return replace(result, rows=kept[result.rows], flops=flops.total + result.flops, kept_ids=kept)


def _restrict(x: Tensor, q: Tensor, rows: Tensor, go_on: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden rows and queries of the row subset `go_on`."""
    at = torch.searchsorted(rows, go_on)
    return x[at], q[at], go_on
