"""Computes one chunk's KV and sketch, by a full prefill of its prefix and itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvstore import EncodedChunk, encode_chunk
from service.worker.core.layer_view import LayerView
from service.worker.core.layout import PromptLayout
from service.worker.core.steps import Steps
from service.worker.forward.prefill import prefill
from service.worker.methods.fusion.vanilla import Method as Vanilla
from service.worker.methods.sparse.sketch import Sketch, SketchBuilder
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.addressing import Address


class ScratchKV:
    """A KV cache with memory for one layer, because a full prefill never reads an earlier layer."""

    def __init__(self, adapter: DecoderAdapter, tokens: int) -> None:
        shape = (adapter.kv_heads, tokens, adapter.head_dim)
        self._k = torch.empty(shape, dtype=adapter.dtype, device=adapter.device)
        self._v = torch.empty_like(self._k)

    def prompt_layer(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        return self._k[:, :tokens], self._v[:, :tokens]


@dataclass(frozen=True)
class ComputedChunk:
    """A chunk that was computed here, encoded for the store.

    Attributes:
        chunk: its KV.
        sketch: its sketch, with the rounding that storing causes.
    """

    chunk: EncodedChunk
    sketch: Sketch


def compute_chunk(adapter: DecoderAdapter, address: Address) -> Steps[ComputedChunk]:
    """Computes the chunk at `address`; pauses where the layer loop does."""
    first = len(address.prefix_ids)
    ids = [*address.prefix_ids, *address.ids]
    layout = PromptLayout.of(ids, [], [], uncached=[True], device=adapter.device)
    k: list[Tensor] = []
    v: list[Tensor] = []
    sketch = SketchBuilder(first)

    def capture(view: LayerView) -> None:
        k.append(view.fresh_k[first:].clone())
        v.append(view.fresh_v[first:].clone())
        sketch.add(view)

    scratch = ScratchKV(adapter, len(ids))
    for awaited in prefill(adapter, layout, [None], Vanilla(), scratch, capture=capture):
        yield awaited
        if len(k) == adapter.layers:
            break  # all KV is captured; the last layer's output is not needed
    # Encoded and decoded as the store would do it, so that this prompt selects the same blocks as
    # a later one that reads the stored sketch.
    stored = Sketch.of(sketch.sketch().tensors()).to(adapter.device)
    pin = adapter.device.type == "cuda"
    return ComputedChunk(encode_chunk(address.spec, k, v, pin=pin), stored)
