"""Puts stored segments and rows just computed at their places in a cache. Knows no method."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from service.worker.core.layer_view import CachedSegment
from service.worker.core.layout import PromptLayout
from service.worker.forward.transfers import Transfers
from service.worker.kernels.cpu import rotation
from service.worker.kernels.gpu import kv_placement_gpu
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.rope import RotaryTable


class PromptKV(Protocol):
    """Where the prompt's KV goes: writable K, V `[kv_heads, tokens, d]` of a layer."""

    def prompt_layer(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]: ...


class KVPlacer:
    """Puts a prompt's cached segments at their positions `[n]` in its cache, a layer at a time in
    ascending order. Use as a context manager."""

    def __init__(
        self,
        adapter: DecoderAdapter,
        layout: PromptLayout,
        cached: Sequence[CachedSegment | None],
        positions: Tensor,
        kv: PromptKV,
    ) -> None:
        self._adapter = adapter
        self._layout = layout
        self._cached = cached
        self._positions = positions
        self._kv = kv
        self._transfers: Transfers | None = None

    def __enter__(self) -> KVPlacer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._transfers is not None:
            self._transfers.finish()

    def begin(self, layer: int) -> None:
        """The first layer that will be placed is on its way to a GPU while others are computed."""
        k_all, _ = self._kv.prompt_layer(layer, self._layout.tokens)
        if kv_placement_gpu.supports(k_all):
            self._begun(k_all.device).begin(layer)

    def place(self, layer: int) -> None:
        """Decode a layer, turn its keys, straight into the cache."""
        k_all, v_all = self._kv.prompt_layer(layer, self._layout.tokens)
        rope, positions = self._adapter.rope, self._positions
        if kv_placement_gpu.supports(k_all):
            transfers = self._begun(k_all.device)
            for (span, _), parts in zip(self._segments, transfers.layer(layer), strict=True):
                kv_placement_gpu.place(
                    *parts,
                    positions=positions[span],
                    cos=rope.cos,
                    sin=rope.sin,
                    k_out=k_all[:, span],
                    v_out=v_all[:, span],
                )
            transfers.begin(layer + 1)
            return
        found = [(span.start, *stored.layer(layer)) for span, stored in self._segments]
        if (kernel := rotation.placement_kernel_for(found, k_all, v_all, positions)) is not None:
            kernel.place(found, k_all, v_all, positions=positions, cos=rope.cos, sin=rope.sin)
            return
        for start, k, v in found:
            span = slice(start, start + len(k))
            target = k_all[:, span].transpose(0, 1)
            rope.rotate(k.to(k_all.device), positions[span], out=target)
            v_all[:, span].copy_(v.transpose(0, 1))

    @cached_property
    def _segments(self) -> list[tuple[slice, CachedSegment]]:
        """Where each goes, and what is stored of it."""
        found = []
        for segment, stored in zip(self._layout.segments, self._cached, strict=True):
            if not segment.uncached and segment.tokens:
                assert stored is not None, "a segment that is not cold has stored KV"
                found.append((slice(segment.start, segment.end), stored))
        return found

    def _begun(self, device: torch.device) -> Transfers:
        if self._transfers is None:
            stored = [stored for _, stored in self._segments]
            self._transfers = Transfers(stored, self._adapter.layers, device)
        return self._transfers


def write_rows(
    rope: RotaryTable, k_all: Tensor, v_all: Tensor, k: Tensor, v: Tensor, rows: Tensor
) -> None:
    """k before RoPE, v `[m, kv_heads, d]` of `rows` `[m]`, ascending, over what is there; keys
    turned to their row's position."""
    if (kernel := rotation.row_write_kernel_for(k, v, k_all, v_all, rows)) is not None:
        kernel.write(k, v, k_all, v_all, rows=rows, cos=rope.cos, sin=rope.sin)
        return
    turned = rope.rotate(k, rows).transpose(0, 1)
    if len(rows) == k_all.shape[1]:
        k_all.copy_(turned)
        v_all.copy_(v.transpose(0, 1))
    else:
        k_all.index_copy_(1, rows, turned)
        v_all.index_copy_(1, rows, v.transpose(0, 1))
