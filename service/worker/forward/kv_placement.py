"""Writes stored segments and freshly computed rows to their positions in a prompt's KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from kvstore import EncodedChunk
from service.worker.device_copies import to_device
from service.worker.forward.transfers import GROUP_LAYERS, StagedLayers, Transfers
from service.worker.kernels.cpu import rotation
from service.worker.kernels.cpu.rotation import StoredSegment
from service.worker.kernels.gpu import kv_placement_gpu, rotation_gpu
from service.worker.kernels.gpu.kv_placement_gpu import Target
from service.worker.kv.pool import KVPool, SequenceKV
from service.worker.layout import PromptLayout
from service.worker.methods.layer_view import CachedSegment, Replaced
from service.worker.model.decoder import DecoderModel
from service.worker.model.rope import RotaryTable


class PromptKV(Protocol):
    """The KV cache of one prompt."""

    def prompt_layer(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Return writable keys and values of a layer, each `[kv_heads, tokens, head_dim]`."""


@dataclass(frozen=True)
class LayerViews:
    """Stored KV whose layers are at hand as tensors; implements `CachedSegment`."""

    layers: Sequence[tuple[Tensor, Tensor]]

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.layers[layer]


def opened(stored: CachedSegment | None) -> CachedSegment | None:
    """Return stored KV in host memory as it is read fastest, layer by layer and more than once."""
    layers = stored.raw_layers() if isinstance(stored, EncodedChunk) else None
    return stored if layers is None else LayerViews(layers)


@dataclass
class KVPlacer:
    """Writes a prompt's cached segments to its KV cache, layer by layer in ascending order. It
    is a context manager: transfers to a GPU end with it."""

    decoder: DecoderModel
    layout: PromptLayout
    cached: Sequence[CachedSegment | None]  # stored KV by segment, None where a segment has none
    positions: Tensor  # RoPE positions of the cached keys `[n]`
    kv: PromptKV
    _transfers: Transfers | None = None
    _by_kernel: bool | None = None
    _placed: int = 0  # on a GPU, the layer behind the last that is in place

    def __enter__(self) -> KVPlacer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._transfers is not None:
            self._transfers.finish()

    def begin(self, layer: int) -> None:
        """Start copying a layer to the GPU, so that it arrives while other layers are computed."""
        k_all, _ = self.kv.prompt_layer(layer, self.layout.tokens)
        if self._segments and kv_placement_gpu.supports(k_all):
            self._transfers_to(k_all).begin(layer)

    def place(self, layer: int) -> None:
        """Decode a layer, rotate its keys, and write both keys and values to the cache. On a GPU
        it may have been placed with the one before it."""
        if layer < self._placed:
            return
        k_all, v_all = self.kv.prompt_layer(layer, self.layout.tokens)
        rope, positions = self.decoder.ropes[layer], self.positions
        if self._segments and kv_placement_gpu.supports(k_all):
            transfers = self._transfers_to(k_all)
            staged = transfers.group(layer)
            self._place_group(staged)
            self._placed = staged.layers.stop
            transfers.begin(self._placed)
            return
        parts = self._parts_of(layer)
        if self._placed_by_kernel(parts):
            rotation.place(parts, k_all, v_all, positions=positions, cos=rope.cos, sin=rope.sin)
            return
        for start, k, v in parts:
            span = slice(start, start + len(k))
            target = k_all[:, span].transpose(0, 1)
            rope.rotate(k.to(k_all.device), positions[span], out=target)
            v_all[:, span].copy_(v.transpose(0, 1))

    def _place_group(self, staged: StagedLayers) -> None:
        """Place staged layers by one kernel for all that are rotated alike."""
        layers, ropes = staged.layers, self.decoder.ropes
        starts = [i for i in layers if i == layers.start or ropes[i] is not ropes[i - 1]]
        for first, stop in zip(starts, [*starts[1:], layers.stop], strict=True):
            target = self._pool
            if target is None:
                target = Target.of_layer(*self.kv.prompt_layer(first, self.layout.tokens))
            kv_placement_gpu.place(
                staged.buffer,
                staged.placement,
                target,
                stop - first,
                positions=self.positions,
                cos=ropes[first].cos,
                sin=ropes[first].sin,
                staged_layer=first - layers.start,
                layer=0 if self._pool is None else first,
            )

    def left_to_kernel(self, layer: int) -> list[StoredSegment]:
        """Return what a kernel places at a layer before it goes on; place what none can."""
        parts = self._parts_of(layer)
        if self._placed_by_kernel(parts):
            return parts
        self.place(layer)
        return []

    def _parts_of(self, layer: int) -> list[StoredSegment]:
        return [(span.start, *stored.layer(layer)) for span, stored in self._segments]

    def _placed_by_kernel(self, parts: list[StoredSegment]) -> bool:
        """Return whether a kernel on a CPU places what is stored of a layer, as of all others."""
        if self._by_kernel is None:
            kv = self.kv.prompt_layer(0, self.layout.tokens)
            self._by_kernel = rotation.supports_placement(parts, *kv, self.positions)
        return self._by_kernel

    @cached_property
    def _pool(self) -> Target | None:
        """Where all layers of the cache lie; None if they do not lie in a pool."""
        if not isinstance(self.kv, SequenceKV):
            return None
        k, _ = self.kv.prompt_layer(0, self.layout.tokens)
        starts = torch.tensor(self.kv.first_rows()) * k.shape[2]
        pool = self.kv.pool
        return Target(
            pool.all_k,
            pool.all_v,
            to_device(starts, k.device),
            k.shape[0],
            k.stride(0),
            k.stride(1),
        )

    @cached_property
    def _segments(self) -> list[tuple[slice, CachedSegment]]:
        """The rows of each cached segment, and its stored KV."""
        segments = []
        for segment, stored in zip(self.layout.segments, self.cached, strict=True):
            if not segment.uncached and segment.tokens:
                assert stored is not None, "a cached segment has stored KV"
                segments.append((slice(segment.start, segment.end), stored))
        return segments

    def _transfers_to(self, k_all: Tensor) -> Transfers:
        if self._transfers is None:
            self._transfers = Transfers(
                [stored for _, stored in self._segments],
                [span for span, _ in self._segments],
                shape=(k_all.shape[0], k_all.shape[2]),
                dtype=k_all.dtype,
                layers=self.decoder.layers,
                device=k_all.device,
                most=1 if self._pool is None else GROUP_LAYERS,
            )
        return self._transfers


def write_rows(
    rope: RotaryTable, k_all: Tensor, v_all: Tensor, k: Tensor, v: Tensor, rows: Tensor
) -> None:
    """Overwrite `rows` `[m]`, ascending, of a layer's cache with k and v `[m, kv_heads,
    head_dim]`, the keys rotated to their row's position."""
    if rotation_gpu.supports(k) and k_all.dtype == k.dtype:
        rotation_gpu.write(k, v, k_all, v_all, positions=rows, cos=rope.cos, sin=rope.sin)
        return
    if rotation.supports_write(k, v, k_all, v_all, rows):
        rotation.write(k, v, k_all, v_all, rows=rows, cos=rope.cos, sin=rope.sin)
        return
    rotated = rope.rotate(k, rows).transpose(0, 1)
    if len(rows) == k_all.shape[1]:
        k_all.copy_(rotated)
        v_all.copy_(v.transpose(0, 1))
    else:
        k_all.index_copy_(1, rows, rotated)
        v_all.index_copy_(1, rows, v.transpose(0, 1))


def can_keep(k_all: Tensor) -> bool:
    """Return whether `write_and_rotate` can keep what it replaces in a cache like this."""
    return rotation_gpu.supports(k_all)


def write_and_rotate(
    rope: RotaryTable,
    kv: tuple[Tensor, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    *,
    replaced: Replaced | None = None,
) -> Tensor:
    """`write_rows` to kv, and return the rows' queries `[m, heads, head_dim]` rotated."""
    k_all, v_all = kv
    if rotation_gpu.supports(k) and rotation_gpu.supports(q) and k_all.dtype == k.dtype:
        kept = None if replaced is None else (replaced.k, replaced.v)
        return rotation_gpu.write_with_queries(
            q, k, v, k_all, v_all, positions=rows, cos=rope.cos, sin=rope.sin, replaced=kept
        )
    if rotation.are_rows(q, q.shape) and rotation.supports_write(k, v, k_all, v_all, rows):
        return rotation.write_with_queries(
            q, k, v, k_all, v_all, rows=rows, cos=rope.cos, sin=rope.sin
        )
    write_rows(rope, k_all, v_all, k, v, rows)
    return rope.rotate(q, rows)


def write_tokens(
    rope: RotaryTable,
    pool: KVPool,
    layer: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    positions: Tensor,
    into: Tensor,
) -> Tensor:
    """Write one token of each of several sequences to the pool, keys rotated to its position, and
    return the tokens' queries rotated to it `[sequences, heads, head_dim]`.
    """
    on_gpu = rotation_gpu.supports(k) and rotation_gpu.supports(q)
    if on_gpu and pool.k[layer].dtype == k.dtype:
        return rotation_gpu.write_with_queries(
            q, k, v, pool.k[layer], pool.v[layer],
            positions=positions, cos=rope.cos, sin=rope.sin, into=into,
        )  # fmt: skip
    pool.write(layer, into, rope.rotate(k, positions).flatten(0, 1), v.flatten(0, 1))
    return rope.rotate(q, positions)
