"""Writes stored segments and freshly computed rows to their positions in a prompt's KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

from torch import Tensor

from kvstitch.kvstore import EncodedChunk
from kvstitch.service.worker.kernels.cpu import rotation
from kvstitch.service.worker.kernels.cpu.rotation import StoredSegment
from kvstitch.service.worker.kernels.cpu.stored_layers import DecodedLayers
from kvstitch.service.worker.kernels.device_kernels import kernels_of
from kvstitch.service.worker.kv.pool import KVPool, SequenceStates
from kvstitch.service.worker.layout import PromptLayout
from kvstitch.service.worker.methods.layer_view import CachedSegment, Replaced
from kvstitch.service.worker.model.decoder import DecoderModel
from kvstitch.service.worker.model.rope import RotaryTable


class PromptKV(Protocol):
    def prompt_layer(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Return writable keys and values of a layer, each `[kv_heads, tokens, head_dim]`."""

    @property
    def states(self) -> SequenceStates:
        """Of its mixers."""


@dataclass(frozen=True)
class LayerViews:
    """Stored KV whose layers are at hand as tensors; implements `CachedSegment`."""

    layers: Sequence[tuple[Tensor, Tensor]]

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.layers[layer]

    def state(self, layer: int) -> tuple[Tensor, str]:
        raise AssertionError("of a model without mixers")


def opened(stored: CachedSegment | None) -> CachedSegment | None:
    """Return stored KV in host memory as it is read fastest, layer by layer and more than once."""
    return DecodedLayers(stored) if isinstance(stored, EncodedChunk) else stored


@dataclass
class KVPlacer:
    """Writes a prompt's cached segments to its KV cache, layer by layer in ascending order. It
    is a context manager: what a device still reads of them ends with it (`kv_placer`)."""

    decoder: DecoderModel
    layout: PromptLayout
    cached: Sequence[CachedSegment | None]  # stored KV by segment, None where a segment has none
    positions: Tensor  # RoPE positions of the cached keys `[n]`
    kv: PromptKV
    _by_kernel: bool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def begin(self, layer: int) -> None:
        """Prepare to place a layer while others are computed, where the device has a way to."""

    def place(self, layer: int) -> None:
        """Decode a layer, rotate its keys, and write both keys and values to the cache."""
        k_all, v_all = self.kv.prompt_layer(layer, self.layout.tokens)
        rope, positions = self.decoder.ropes[layer], self.positions
        parts = self._parts_of(layer)
        if self._placed_by_kernel(parts):
            rotation.place(parts, k_all, v_all, positions=positions, cos=rope.cos, sin=rope.sin)
            return
        for start, k, v in parts:
            span = slice(start, start + len(k))
            target = k_all[:, span].transpose(0, 1)
            rope.rotate(k.to(k_all.device), positions[span], out=target)
            v_all[:, span].copy_(v.transpose(0, 1))

    def left_to_kernel(self, layer: int) -> list[StoredSegment]:
        """Return what a kernel places at a layer before it goes on; place what none can."""
        parts = self._parts_of(layer)
        if self._placed_by_kernel(parts):
            return parts
        self.place(layer)
        return []

    def _parts_of(self, layer: int) -> list[StoredSegment]:
        return [(span.start, *stored.layer(layer)) for span, stored in self.segments]

    def _placed_by_kernel(self, parts: list[StoredSegment]) -> bool:
        """Return whether a kernel on a CPU places what is stored of a layer, as of all others."""
        if self._by_kernel is None:
            kv = self.kv.prompt_layer(0, self.layout.tokens)
            self._by_kernel = rotation.supports_placement(parts, *kv, self.positions)
        return self._by_kernel

    @cached_property
    def segments(self) -> list[tuple[slice, CachedSegment]]:
        """The rows of each cached segment, and its stored KV."""
        segments = []
        for segment, stored in zip(self.layout.segments, self.cached, strict=True):
            if not segment.uncached and segment.tokens:
                assert stored is not None, "a cached segment has stored KV"
                segments.append((slice(segment.start, segment.end), stored))
        return segments


def kv_placer(
    decoder: DecoderModel,
    layout: PromptLayout,
    cached: Sequence[CachedSegment | None],
    positions: Tensor,
    kv: PromptKV,
) -> KVPlacer:
    """Return the placer for the decoder's device."""
    make = kernels_of(decoder.device).placer or KVPlacer
    placer: KVPlacer = make(decoder, layout, cached, positions, kv)
    return placer


def write_rows(
    rope: RotaryTable, k_all: Tensor, v_all: Tensor, k: Tensor, v: Tensor, rows: Tensor
) -> None:
    """Overwrite `rows` `[m]`, ascending, of a layer's cache with k and v `[m, kv_heads,
    head_dim]`, the keys rotated to their row's position."""
    if kernels_of(k.device).write(rope, (k_all, v_all), k, v, rows):
        return
    rotated = rope.rotate(k, rows).transpose(0, 1)
    if len(rows) == k_all.shape[1]:
        k_all.copy_(rotated)
        v_all.copy_(v.transpose(0, 1))
    else:
        k_all.index_copy_(1, rows, rotated)
        v_all.index_copy_(1, rows, v.transpose(0, 1))


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
    rotated = kernels_of(k.device).write_with_queries(rope, kv, q, k, v, rows, replaced=replaced)
    if rotated is not None:
        return rotated
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
    kv = pool.k[layer], pool.v[layer]
    rotated = kernels_of(k.device).write_with_queries(rope, kv, q, k, v, positions, into=into)
    if rotated is not None:
        return rotated
    pool.write(layer, into, rope.rotate(k, positions).flatten(0, 1), v.flatten(0, 1))
    return rope.rotate(q, positions)
