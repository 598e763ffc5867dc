"""THE layer loop: the only place that runs layers on a prompt.

Per layer: place cached segments' KV at their positions, compute QKV of the current rows, write
theirs over it, let the fusion method choose which rows go on, attend by index, finish. Full
prefill, every fusion method and precompute are this loop with other hooks.

It is a generator that pauses after every layer, so that the engine can put decode steps of other
sequences between layers and drop an aborted prompt at once. Knows no store, no socket, no request.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from service.worker.adapters.base import DecoderAdapter
from service.worker.attention import attend_rows
from service.worker.fusion.base import FusionMethod, LayerView
from service.worker.layout import PromptLayout, union


class CachedSegment(Protocol):
    """A segment's stored KV: per layer k (before RoPE) and v, each `[tokens, kv_heads, d]`."""

    def layer(self, layer: int) -> tuple[Tensor, Tensor]: ...


class PromptKV(Protocol):
    """Where the prompt's KV goes: writable K, V `[kv_heads, tokens, d]` of a layer."""

    def prompt_layer(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]: ...


Capture = Callable[[int, Tensor, Tensor], None]


@dataclass
class PrefillResult:
    """logits `[vocabulary]` fp32 of the first answer token; window_q per layer `[w, heads, d]`
    (rotated queries of the last prompt rows); rows_per_layer: rows whose attention was computed;
    rows: the rows of the last layer before only the last one went on."""

    logits: Tensor
    window_q: list[Tensor]
    rows_per_layer: list[int]
    rows: Tensor


def prefill(
    adapter: DecoderAdapter,
    layout: PromptLayout,
    cached: Sequence[CachedSegment | None],
    method: FusionMethod,
    kv: PromptKV,
    *,
    window: int = 0,
    capture: Capture | None = None,
) -> Generator[None, None, PrefillResult]:
    """Run the prompt of `layout`; `cached[i]` is the stored KV of segment i, None if cold.

    `capture(layer, k, v)` sees the computed rows' KV before RoPE (`[rows, kv_heads, d]`):
    precompute stores it. `window`: last prompt queries to keep for eviction.
    """
    n = layout.tokens
    forced = layout.forced_rows
    rows = union(method.start_rows(layout), forced)
    key_positions = method.key_positions(layout)
    x = adapter.embed(layout.ids[rows])
    window_q: list[Tensor] = []
    rows_per_layer: list[int] = []
    last_layer = adapter.layers - 1
    for layer in range(adapter.layers):
        k_all, v_all = kv.prompt_layer(layer, n)
        if len(rows) < n:
            _place(adapter, layout, cached, layer, key_positions, k_all, v_all)
        q, k, v = adapter.qkv(layer, x)
        if capture is not None:
            capture(layer, k, v)
        q = adapter.rope.rotate(q, rows)
        _write(k_all, v_all, adapter.rope.rotate(k, rows), v, rows)
        if window:
            window_q.append(q[-window:].clone())
        view = LayerView(layer, layout, rows, q, k_all, v_all, adapter.scale)
        chosen = method.select(view)
        if chosen is not None:
            go_on = union(chosen, forced)
            x, q, rows = _restrict(x, q, rows, go_on)
        if layer == last_layer:
            # Nothing reads the other rows' outputs any more.
            final_rows, tail = rows, rows[-1:]
            x, q, rows = _restrict(x, q, rows, tail)
        rows_per_layer.append(len(rows))
        x = adapter.finish(layer, x, attend_rows(q, k_all, v_all, rows, adapter.scale))
        yield
    return PrefillResult(adapter.logits(x)[0], window_q, rows_per_layer, final_rows)


def run(steps: Generator[None, None, PrefillResult]) -> PrefillResult:
    """Drive a prefill to its end, for those who have nothing to do between layers."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: PrefillResult = end.value
            return result


def _place(
    adapter: DecoderAdapter,
    layout: PromptLayout,
    cached: Sequence[CachedSegment | None],
    layer: int,
    key_positions: Tensor,
    k_all: Tensor,
    v_all: Tensor,
) -> None:
    """Rotate every cached segment's keys to their positions, straight into the cache."""
    for segment, stored in zip(layout.segments, cached, strict=True):
        if segment.cold or not segment.tokens:
            continue
        assert stored is not None, "a segment that is not cold has stored KV"
        k, v = stored.layer(layer)
        span = slice(segment.start, segment.end)
        target = k_all[:, span].transpose(0, 1)
        adapter.rope.rotate(k.to(k_all.device), key_positions[span], out=target)
        v_all[:, span].copy_(v.to(v_all.device).transpose(0, 1))


def _write(k_all: Tensor, v_all: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> None:
    if len(rows) == k_all.shape[1]:
        k_all.copy_(k.transpose(0, 1))
        v_all.copy_(v.transpose(0, 1))
    else:
        k_all.index_copy_(1, rows, k.transpose(0, 1))
        v_all.index_copy_(1, rows, v.transpose(0, 1))


def _restrict(x: Tensor, q: Tensor, rows: Tensor, go_on: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden rows and queries of the row subset `go_on`."""
    at = torch.searchsorted(rows, go_on)
    return x[at], q[at], go_on
