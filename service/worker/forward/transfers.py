"""Copies stored layers to a GPU: the next layer is copied while the GPU computes the current one.

    copying stream     │ copy 0 │          │ copy 1 │            │ copy 2 │
    computing stream            │ place 0 │ layer 0 ...│ place 1 │ layer 1 ...

All segments of a layer lie one after the other in one buffer on the device, so that one kernel
places them. KV in codecs that it can decode is copied as it is stored; KV in other codecs is
decoded on the device first. A layer is only copied ahead if it has been read from the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from kvstore import ChunkSpec, EncodedBlocks, EncodedChunk
from kvstore.format.tensor_layout import layer_layout
from service.worker.kernels.gpu import kv_placement_gpu
from service.worker.kernels.gpu.kv_placement_gpu import Placement, StagedSegment
from service.worker.methods.layer_view import CachedSegment

ALIGNMENT = 256
"""Of segments in the buffer, in bytes; copies and loads are fastest there."""


Encoded = EncodedChunk | EncodedBlocks


@runtime_checkable
class ArrivingSegment(Protocol):
    """Stored KV that may still be being read from the store."""

    def arrived(self, layer: int) -> bool:
        """Return whether the layer is in host memory."""

    def stored(self, layer: int) -> Encoded | None:
        """Return the encoded KV that contains an arrived layer; None if the layer is already
        decoded."""


class InTurn:
    """Runs each copy immediately, on a device without streams."""

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Return a context in which copies are started, after what was computed until now."""
        yield

    def needed(self) -> None:
        """Let what is computed from now on wait for the copies."""

    def finish(self) -> None:
        """Wait until no copy reads host memory any more."""


class Aside(InTurn):
    """Runs copies on a GPU stream beside the one that computes."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def copying(self) -> Iterator[None]:
        # The layer that was placed last is read from the same buffer.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def needed(self) -> None:
        torch.cuda.current_stream().wait_stream(self._stream)

    def finish(self) -> None:
        self._stream.synchronize()


@dataclass(frozen=True)
class StagedLayer:
    """One layer's stored bytes on the device, uint8, and what lies where in them."""

    buffer: Tensor
    placement: Placement


class _Form(NamedTuple):
    """How the bytes of a segment's layer are laid out: `starts` of keys, values and any scales."""

    nbytes: int
    starts: tuple[int, ...]


class Transfers:
    """Copies the layers of some segments to a device, in ascending order.

    `finish` must be called before the segments' memory is released.

    Args:
        segments: stored KV of the segments, none empty.
        rows: of the prompt, where each segment begins and ends.
        shape: KV heads and head dim of the cache.
        side: runs the copies; by default beside the computation on a GPU, immediately elsewhere.
    """

    def __init__(
        self,
        segments: Sequence[CachedSegment],
        rows: Sequence[slice],
        *,
        shape: tuple[int, int],
        dtype: torch.dtype,
        layers: int,
        device: torch.device,
        side: InTurn | None = None,
    ) -> None:
        self._segments = segments
        # Asked once: a check against a protocol takes longer than a copy.
        self._arriving = [s if isinstance(s, ArrivingSegment) else None for s in segments]
        self._rows = rows
        self._shape = shape
        self._dtype = dtype
        self._layers = layers
        self._device = device
        self._side = side or (Aside(device) if device.type == "cuda" else InTurn())
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self._placements: dict[tuple[_Form, ...], Placement] = {}
        self._ahead: tuple[int, StagedLayer] | None = None

    def layer(self, layer: int) -> StagedLayer:
        """Return a layer on the device, until the next is asked for; it must have arrived."""
        ahead, self._ahead = self._ahead, None
        staged = ahead[1] if ahead is not None and ahead[0] == layer else self._copy_layer(layer)
        self._side.needed()
        return staged

    def begin(self, layer: int) -> None:
        """Start copying the layer that is needed next, if it exists and has arrived.

        The layer before it must have been placed.
        """
        if layer < self._layers and all(s is None or s.arrived(layer) for s in self._arriving):
            self._ahead = layer, self._copy_layer(layer)

    def finish(self) -> None:
        """Wait until no copy reads host memory any more."""
        self._ahead = None
        self._side.finish()

    def _copy_layer(self, layer: int) -> StagedLayer:
        sources: list[Encoded | None] = []
        for segment, arriving in zip(self._segments, self._arriving, strict=True):
            encoded = segment if isinstance(segment, EncodedChunk | EncodedBlocks) else None
            sources.append(encoded if arriving is None else arriving.stored(layer))
        forms = tuple(map(self._form, sources, self._rows))
        placement = self._placements.get(forms)
        if placement is None:
            placement = self._placements[forms] = self._placement(forms)
        with self._side.copying():
            for segment, source, form, staged in zip(
                self._segments, sources, forms, placement.segments, strict=True
            ):
                self._copy(segment, source, layer, form, staged.k)
        return StagedLayer(self._buffer, placement)

    def _form(self, source: Encoded | None, rows: slice) -> _Form:
        tokens = rows.stop - rows.start
        if source is not None and source.spec.codec in kv_placement_gpu.CODECS:
            return _encoded(source.spec, tokens)
        kv_heads, head_dim = self._shape
        half = tokens * kv_heads * head_dim * self._dtype.itemsize
        return _Form(2 * half, (0, half))

    def _placement(self, forms: Sequence[_Form]) -> Placement:
        """Put the segments one after the other, in a buffer that is large enough."""
        segments, end = [], 0
        for form, rows in zip(forms, self._rows, strict=True):
            starts = [end + start for start in form.starts]
            tokens, scaled = rows.stop - rows.start, len(starts) > 2
            segments.append(StagedSegment(rows.start, tokens, scaled, *starts))
            end += -(-form.nbytes // ALIGNMENT) * ALIGNMENT
        if end > len(self._buffer):
            self._buffer = torch.empty(end, dtype=torch.uint8, device=self._device)
        return Placement(segments, self._dtype.itemsize, self._device)

    def _copy(
        self, segment: CachedSegment, source: Encoded | None, layer: int, form: _Form, at: int
    ) -> None:
        """Copy a segment's layer to byte `at` of the buffer."""
        target = self._buffer[at : at + form.nbytes]
        if source is not None and source.spec.codec in kv_placement_gpu.CODECS:
            target.copy_(source.layer_bytes(layer), non_blocking=True)
            return
        if source is not None:
            k, v = source.layer(layer, device=self._device, non_blocking=True)
        else:
            k, v = segment.layer(layer)
        for x, part in zip((k, v), target.view(self._dtype).chunk(2), strict=True):
            part.view(x.shape).copy_(x, non_blocking=True)


@lru_cache(maxsize=1024)
def _encoded(spec: ChunkSpec, tokens: int) -> _Form:
    """Return the form of a layer as it is stored."""
    entries = layer_layout(replace(spec, tokens=tokens))
    return _Form(entries[-1].end, tuple(entry.start for entry in entries))
