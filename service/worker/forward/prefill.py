"""The layer loop for prompts of which every token is held.

At each layer it places the KV of cached segments at their positions, computes queries, keys and
values of the current rows, overwrites the cache with them, lets the fusion method choose which rows
continue, computes attention masked by index, and finishes the layer. (Methods that hold a
part of the prompt bring a loop of their own.)

The loop pauses after every layer and, where there are many rows, within it: the engine decodes
other sequences in between, and drops an aborted prompt at once. Where it pauses does not depend on
what else is running, so an answer never depends on other requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kvstitch.service.worker.forward.attention_pass import AttentionPass, RecordedRuns, Recordings
from kvstitch.service.worker.forward.kv_placement import KVPlacer, PromptKV, kv_placer, opened
from kvstitch.service.worker.forward.layer_ops import SparseRows, attend, attend_and_finish, project
from kvstitch.service.worker.forward.mixing import PromptMixing
from kvstitch.service.worker.kernels.device_kernels import kernels_of
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.bases.dense import (
    EVERYTHING_CACHED,
    DenseMethod,
    RowWeights,
    Sight,
)
from kvstitch.service.worker.methods.bases.eviction import EvictionMethod
from kvstitch.service.worker.methods.fusion.vanilla import Method as Vanilla
from kvstitch.service.worker.methods.layer_view import (
    CachedSegment,
    LayerView,
    PrefillResult,
    ProjectedRows,
)
from kvstitch.service.worker.methods.stored_kv import Shift
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.mixer_state import States
from kvstitch.service.worker.model.model_facts import FlopCount
from kvstitch.service.worker.steps import Steps

Capture = Callable[[LayerView], None]
OnPass = Callable[[int, Tensor], None]
"""Called with a layer and the prompt rows that an attention pass computed at it."""
Arrival = Callable[[int], Steps[None]]
"""Yields futures until this layer of every cached segment has been loaded, then returns."""


@dataclass
class Progress:
    """How far a prefill got with every row computed. It can be resumed from here if a segment
    turns out not to be stored: nothing in here depends on cached KV."""

    layer: int = 0  # the first layer that is not finished
    x: Tensor | None = None  # hidden states of all rows before `layer`, `[n, hidden]`
    # what the eviction method's `observe` returned at the finished layers
    observed: list[Tensor] = field(default_factory=list)
    # number of rows whose attention was computed, per finished layer
    rows_per_layer: list[int] = field(default_factory=list)
    # count of all work done for the prompt, also of work that is not resumed
    flops: FlopCount | None = None
    # of mixers: behind all rows, and behind so many first tokens
    states: States = field(default_factory=dict)
    marks: dict[int, States] = field(default_factory=dict)


def prefill(
    decoder: DecoderModel,
    layout: PromptLayout,
    cached: Sequence[CachedSegment | None],
    method: DenseMethod,
    kv: PromptKV,
    *,
    eviction: EvictionMethod | None = None,
    capture: Capture | None = None,
    on_pass: OnPass | None = None,
    arrival: Arrival | None = None,
    progress: Progress | None = None,
    recordings: Recordings | None = None,
) -> Steps[PrefillResult]:
    """Prefill the prompt of `layout` with `method`.

    An eviction method observes every layer, and may start over with fewer rows. `capture` and
    `on_pass` are called at every layer, of the loop and of attention passes; `arrival` waits for a
    layer of stored KV. `progress` is resumed from, if an earlier run left any, and updated.
    """
    if decoder.device.type == "cpu":
        cached = [opened(segment) for segment in cached]
    with kv_placer(decoder, layout, cached, method.key_positions(layout), kv) as placer:
        loop = PromptLoop(
            decoder=decoder,
            layout=layout,
            cached=cached,
            kv=kv,
            placer=placer,
            eviction=eviction,
            capture=capture,
            on_pass=on_pass,
            arrival=arrival,
            progress=progress or Progress(),
            recordings=recordings,
        )
        return (yield from method.run(loop))


@dataclass(kw_only=True)
class PromptLoop:
    """The passes over one prompt that a method runs; implements `LayerLoop`."""

    decoder: DecoderModel
    layout: PromptLayout
    cached: Sequence[CachedSegment | None]
    kv: PromptKV
    placer: KVPlacer
    eviction: EvictionMethod | None
    capture: Capture | None
    on_pass: OnPass | None
    arrival: Arrival | None
    progress: Progress
    recordings: Recordings | None = None
    flops: FlopCount = field(init=False)
    _placed: int = 0  # number of first layers at which all cached segments are in place

    def __post_init__(self) -> None:
        self.flops = self.progress.flops = self.progress.flops or FlopCount(self.decoder)

    @property
    def num_layers(self) -> int:
        return self.decoder.layers

    # -- passes before the layers -----------------------------------------------------------------

    def attention_pass(
        self,
        rows: Tensor,
        layers: range,
        weights: Callable[[int], RowWeights],
        sight: Sight = EVERYTHING_CACHED,
    ) -> Steps[Tensor]:
        one_pass = AttentionPass(
            decoder=self.decoder,
            layout=self.layout,
            kv=self.kv,
            flops=self.flops,
            rows=rows,
            layers=layers,
            weights=weights,
            sight=sight,
            placer=self.placer,
            arrived=self._arrived,
            recordings=self.recordings,
        )
        scores = yield from one_pass.run()
        if self.on_pass is not None:
            for layer in range(layers.stop):
                self.on_pass(layer, rows)
        return scores

    def _arrived(self, layer: int) -> Steps[bool]:
        """Wait for stored KV of a layer; return whether the caller must put it in place."""
        if layer < self._placed:
            return False
        if self.arrival is not None:
            yield from self.arrival(layer)
        self._placed = layer + 1
        return True

    # -- the layers -------------------------------------------------------------------------------

    def layers(
        self, method: DenseMethod, rows: Tensor, scores: Tensor | None = None
    ) -> Steps[PrefillResult]:
        decoder, layout, progress, flops = self.decoder, self.layout, self.progress, self.flops
        n, last_layer = layout.tokens, decoder.layers - 1
        forced = layout.forced_rows
        rows = layout.union(rows, forced)
        layer, x = 0, None
        observed: list[Tensor] = []
        rows_per_layer: list[int] = []
        memo: dict[str, Any] = {}
        if len(rows) == n and progress.x is not None:
            layer, x = progress.layer, progress.x
            observed, rows_per_layer = list(progress.observed), list(progress.rows_per_layer)
        if self._placed < method.layers_without_cache <= last_layer:
            self.placer.begin(method.layers_without_cache)
        probes = method.probes(layout, rows, scores)
        mixing: PromptMixing | None = None
        if decoder.mixers:
            mixing = PromptMixing(
                decoder, layout, self.cached, rows, self.kv.states, progress.states, progress.marks
            )
        shift: Shift | None = None
        recorded: RecordedRuns | None = None
        if self.recordings is not None and self.capture is None and self.eviction is None:
            recorded = self.recordings.of_prompt(self, method, rows, probes)
        kernels = kernels_of(decoder.device)
        replay = (yield from recorded.run(0, rows)) if recorded and not layer else None
        if x is None and replay is None:
            x = decoder.embed(layout.ids if len(rows) == n else layout.ids[rows])
        while True:
            if replay is not None:
                layer, x, final_rows = replay.stop, replay.x, rows
                rows_per_layer += replay.rows_per_layer
                if replay.logits is not None:
                    logits = replay.logits
                    break
                replay = None
            assert x is not None
            if len(rows) == n:
                progress.layer, progress.x = layer, x
                progress.observed, progress.rows_per_layer = list(observed), list(rows_per_layer)
            if mixing is not None:
                if mixing.reads_stored and self.arrival is not None:
                    yield from self.arrival(layer)
                x = yield from mixing.advance(layer, x)
            k_all, v_all = self.kv.prompt_layer(layer, n)
            shifted = probes is not None and layer > 0
            keep = (shifted or method.reads_replaced(layer)) and kernels.can_keep(k_all)
            yield from self.make_ready(method, layer, placed=keep or len(rows) < n)
            projected = yield from project(decoder, layer, x, rows, (k_all, v_all), keep=keep)
            flops.project(layer, len(rows))
            q = projected.q
            view = self._view(layer, rows, projected, (k_all, v_all), scores, memo)
            if probes is not None and shifted:
                shift = shift or Shift.of(view, *probes)
                if shift is not None:
                    shift.apply(view)
            method.adjust(view)
            if self.capture is not None:
                self.capture(view)
            if self.eviction is not None and self.eviction.applies(layout):
                kept = self.eviction.restart(view)
                if kept is not None:
                    return (yield from self._start_over(kept))
                observed.append(self.eviction.observe(view))
            document_keys = method.document_keys(view)
            chosen = method.select(view)
            if chosen is not None:
                x, q, rows = _restrict(x, q, rows, layout.union(chosen, forced), n)
            if recorded and document_keys is None and recorded.may_follow(layer):
                replay = yield from recorded.run(layer, rows, x=x, q=q)
                if replay is not None:
                    continue
            if layer == last_layer:
                final_rows = rows
                # Behind it only mixers read the other rows' outputs.
                if not decoder.ends_with_mixers:
                    x, q, rows = x[-1:], q[-1:], layout.last_of(rows)
            rows_per_layer.append(len(rows))
            known, sparse = layout.on_host(rows), None
            if document_keys is not None:
                sparse = SparseRows(int((known < layout.question_start).sum()), document_keys)
            flops.finish(layer, len(rows))
            _count_attention(flops, layout, known, sparse)
            x = yield from attend_and_finish(
                decoder, layer, x, q, rows, (k_all, v_all), sparse=sparse, known=known
            )
            yield None
            layer += 1
            if layer > last_layer:
                if mixing is not None and decoder.ends_with_mixers:
                    x = yield from mixing.advance(layer, x)
                x = yield from self._borrowing(x[-1:])
                logits = decoder.logits(x)[0]
                break
        flops.unembed(1)
        if mixing is not None:
            mixing.finish()
        return PrefillResult(logits, observed, rows_per_layer, final_rows, flops.total, layout)

    def _borrowing(self, x: Tensor) -> Steps[Tensor]:
        """Run the prompt's last row through the blocks that attend to other layers' KV."""
        decoder, n = self.decoder, self.layout.tokens
        last = self.layout.all_rows[-1:]
        for index, layer in enumerate(decoder.borrowed, start=decoder.layers):
            q = decoder.ropes[layer].rotate(decoder.query(index, x), last)
            attended = yield from attend(decoder, layer, q, last, *self.kv.prompt_layer(layer, n))
            x = yield from decoder.finish_steps(index, x, attended)
        return x

    def make_ready(self, method: DenseMethod, layer: int, *, placed: bool) -> Steps[None]:
        """Wait for stored KV of a layer, where the method needs it, and put it in place."""
        if self.arrival is not None and layer >= max(method.layers_without_cache, self._placed):
            yield from self.arrival(layer)
        if placed and layer >= self._placed:
            self.placer.place(layer)

    def _view(
        self,
        layer: int,
        rows: Tensor,
        projected: ProjectedRows,
        kv: tuple[Tensor, Tensor],
        scores: Tensor | None,
        memo: dict[str, Any],
    ) -> LayerView:
        return LayerView(
            layer=layer,
            layout=self.layout,
            rows=rows,
            k=kv[0],
            v=kv[1],
            **projected._asdict(),
            cached=self.cached,
            scale=self.decoder.scale,
            rule=self.decoder.rules[layer],
            rope=self.decoder.ropes[layer],
            flops=self.flops,
            attention_scores=scores,
            memo=memo,
        )

    def _start_over(self, kept: Tensor) -> Steps[PrefillResult]:
        """Prefill a shorter prompt in full, the rows `kept` `[b]` at positions 0..b-1."""
        shorter = self.layout.only(kept)
        nothing = [None] * len(shorter.segments)
        result = yield from prefill(self.decoder, shorter, nothing, Vanilla(), self.kv)
        return replace(
            result, rows=kept[result.rows], flops=self.flops.total + result.flops, kept_ids=kept
        )


def _count_attention(
    flops: FlopCount, layout: PromptLayout, rows: Tensor, sparse: SparseRows | None
) -> None:
    """Count attention of rows in host memory."""
    if sparse is None:
        flops.attend_causally(rows)
        return
    flops.attend_causally(rows[sparse.number :])
    seen = torch.searchsorted(layout.on_host(sparse.keys), rows[: sparse.number], right=True)
    flops.attend(float(seen.sum()))


def _restrict(
    x: Tensor, q: Tensor, rows: Tensor, subset: Tensor, n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states and queries of a subset of the rows, and that subset."""
    index = subset if len(rows) == n else torch.searchsorted(rows, subset)
    return x[index], q[index], subset
