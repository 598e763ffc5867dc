"""Puts stored segments and rows just computed at their places in a cache. Knows no method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from kvstore import EncodedChunk
from service.worker.adapters.base import DecoderAdapter
from service.worker.kernels import placement_gpu
from service.worker.layer_view import CachedSegment
from service.worker.layout import PromptLayout
from service.worker.streaming import ChunkStream


class PromptKV(Protocol):
    """Where the prompt's KV goes: writable K, V `[kv_heads, tokens, d]` of a layer."""

    def prompt_layer(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]: ...


def place(
    adapter: DecoderAdapter,
    layout: PromptLayout,
    cached: Sequence[CachedSegment | None],
    layer: int,
    key_positions: Tensor,
    k_all: Tensor,
    v_all: Tensor,
) -> None:
    """Rotate every cached segment's keys to their positions `[n]`, straight into the cache."""
    for segment, stored in zip(layout.segments, cached, strict=True):
        if segment.cold or not segment.tokens:
            continue
        assert stored is not None, "a segment that is not cold has stored KV"
        span = slice(segment.start, segment.end)
        if placement_gpu.serves(k_all):
            parts = _parts(stored, layer, k_all.device)
            placement_gpu.place(
                *parts, key_positions[span], adapter.rope, k_all[:, span], v_all[:, span]
            )
            continue
        k, v = stored.layer(layer)
        target = k_all[:, span].transpose(0, 1)
        adapter.rope.rotate(k.to(k_all.device), key_positions[span], out=target)
        v_all[:, span].copy_(v.to(v_all.device).transpose(0, 1))


def _parts(
    stored: CachedSegment, layer: int, device: torch.device
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """k and v on the device, encoded where the kernel decodes them: fewer bytes on the way."""
    chunk = stored.chunk if isinstance(stored, ChunkStream) else stored
    if isinstance(chunk, EncodedChunk) and chunk.spec.codec in placement_gpu.CODECS:
        return chunk.stored_layer(layer, device=device)
    k, v = stored.layer(layer)
    return (k.to(device).contiguous(),), (v.to(device).contiguous(),)


def write_rows(k_all: Tensor, v_all: Tensor, k: Tensor, v: Tensor, rows: Tensor) -> None:
    """k (after RoPE), v `[m, kv_heads, d]` of `rows` `[m]` over what is there."""
    if len(rows) == k_all.shape[1]:
        k_all.copy_(k.transpose(0, 1))
        v_all.copy_(v.transpose(0, 1))
    else:
        k_all.index_copy_(1, rows, k.transpose(0, 1))
        v_all.index_copy_(1, rows, v.transpose(0, 1))
