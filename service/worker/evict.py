"""Applies an eviction method to a sequence whose prompt is filled: choose per layer, compact."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from service.worker.adapters.base import DecoderAdapter
from service.worker.eviction.base import EvictionMethod, PromptAttention
from service.worker.kv_pool import SequenceKV
from service.worker.layout import PromptLayout


def evict(
    adapter: DecoderAdapter,
    layout: PromptLayout,
    kv: SequenceKV,
    method: EvictionMethod,
    window_q: Sequence[Tensor],
    room: int,
) -> None:
    """Shrink every layer to what `method` keeps, with `room` for tokens still to come.

    window_q per layer `[w, heads, d]`: the last prompt queries, at most the question's.
    """
    if not method.applies(layout):
        return
    for layer in range(adapter.layers):
        k, _ = kv.prompt_layer(layer, layout.tokens)
        view = PromptAttention(layer, adapter.layers, layout, k, window_q[layer], adapter.scale)
        kv.keep(layer, method.keep(view), room)
