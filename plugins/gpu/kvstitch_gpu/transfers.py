"""Copies stored layers to a GPU: the next ones are copied while the GPU computes the current ones.

    copying stream     │ 0 │      │ 1 to 7 │            │ 8 to 21 ...
    computing stream       │ place 0 │ layer 0 ... │ place 1 to 7 │ layer 1 ... │ place 8 to 21 ...

A segment's layers lie one after the other in its chunk, so several are one copy, and one kernel
places them. The first layer is copied alone, because everything waits for it; then the groups
become larger, and smaller again, because what is computed of the last begins when all has been
copied. They end where a layer has not been read from the store yet, and at `GROUP_BYTES`.

The segments have places in one buffer on the device that fit the largest group. KV in codecs that
the kernel can decode is copied as it is stored; KV in other codecs is decoded on the device first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from kvstitch.kvstore import ChunkSpec, EncodedBlocks, EncodedChunk
from kvstitch.kvstore.format.tensor_layout import layer_layout
from kvstitch.service.worker.methods.layer_view import CachedSegment
from kvstitch_gpu import kv_placement_gpu
from kvstitch_gpu.kv_placement_gpu import Placement, StagedSegment

ALIGNMENT = 256
"""Of segments in the buffer, in bytes; copies and loads are fastest there."""
GROUPS = (1, 7, 14, 10)
"""Layers of the first groups, and of all behind them."""
GROUP_LAYERS, GROUP_BYTES = max(GROUPS), 1 << 28
"""Bounds of a group. Of long prompts few layers are copied at once: there a launch is cheap beside
a copy, and the device's memory is for KV."""


Encoded = EncodedChunk | EncodedBlocks


@runtime_checkable
class ArrivingSegment(Protocol):
    """Stored KV that may still be being read from the store."""

    def arrived(self, layer: int) -> bool:
        """Return whether the layer is in host memory."""

    def stored(self, layer: int) -> Encoded | None:
        """Return the encoded KV that contains an arrived layer; None if it is decoded already."""


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
        # The layers that were placed last are read from the same buffer.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield

    def needed(self) -> None:
        torch.cuda.current_stream().wait_stream(self._stream)

    def finish(self) -> None:
        self._stream.synchronize()


@dataclass(frozen=True)
class StagedLayers:
    """Stored bytes of some layers on the device, uint8, and what lies where in them."""

    layers: range
    buffer: Tensor
    placement: Placement


class _Form(NamedTuple):
    """How the bytes of a segment's layer are laid out: `starts` of keys, values and any scales."""

    nbytes: int
    starts: tuple[int, ...]


class Transfers:
    """Copies the layers of some segments to a device, in ascending order."""

    def __init__(
        self,
        segments: Sequence[CachedSegment],
        rows: Sequence[slice],
        *,
        shape: tuple[int, int],
        dtype: torch.dtype,
        layers: int,
        device: torch.device,
        most: int = GROUP_LAYERS,
        side: InTurn | None = None,
    ) -> None:
        self._segments = segments
        # Asked once, and last: a check against a protocol takes longer than a copy.
        self._arriving = [
            None if isinstance(s, EncodedChunk) or not isinstance(s, ArrivingSegment) else s
            for s in segments
        ]
        self._still_arriving = [s for s in self._arriving if s is not None]
        self._rows = rows
        self._shape = shape
        self._dtype = dtype
        self._layers = layers
        self._device = device
        self._most = most
        self._side = side or (Aside(device) if device.type == "cuda" else InTurn())
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self._placements: dict[tuple[_Form, ...], Placement] = {}
        self._ahead: StagedLayers | None = None
        self._groups = 0

    def group(self, layer: int) -> StagedLayers:
        """Return this arrived layer, and perhaps some behind it, on the device, until `begin`."""
        ahead, self._ahead = self._ahead, None
        staged = ahead if ahead is not None and ahead.layers.start == layer else self._copy(layer)
        self._side.needed()
        return staged

    def begin(self, layer: int) -> None:
        """Start copying the layer that is needed next, if it has arrived, and some behind it."""
        if layer < self._layers and self._arrived(layer):
            self._ahead = self._copy(layer)

    def finish(self) -> None:
        """Wait until no copy reads host memory any more."""
        self._ahead = None
        self._side.finish()

    def _arrived(self, layer: int) -> bool:
        return all(segment.arrived(layer) for segment in self._still_arriving)

    def _copy(self, layer: int) -> StagedLayers:
        sources = [self._sources(layer)]
        forms = self._forms(sources[0])
        most = min(
            self._most_layers(forms),
            GROUPS[min(self._groups, len(GROUPS) - 1)],
            self._layers - layer,
        )
        self._groups += 1
        # Layers of segments that are still being read may differ in form from one to the next.
        while len(sources) < most and self._arrived(layer + len(sources)):
            following = sources[0]
            if self._still_arriving:
                following = self._sources(layer + len(sources))
                if self._forms(following) != forms:
                    break
            sources.append(following)
        placement = self._placements.get(forms)
        if placement is None:
            placement = self._placements[forms] = self._placement(forms)
        with self._side.copying():
            for number, (form, staged) in enumerate(zip(forms, placement.segments, strict=True)):
                of_segment = [source[number] for source in sources]
                self._copy_segment(self._segments[number], of_segment, layer, form, staged.k)
        return StagedLayers(range(layer, layer + len(sources)), self._buffer, placement)

    def _sources(self, layer: int) -> list[Encoded | None]:
        """Return the encoded KV of a layer by segment, None where it is decoded."""
        sources: list[Encoded | None] = []
        for segment, arriving in zip(self._segments, self._arriving, strict=True):
            encoded = segment if isinstance(segment, EncodedChunk | EncodedBlocks) else None
            sources.append(encoded if arriving is None else arriving.stored(layer))
        return sources

    def _forms(self, sources: Sequence[Encoded | None]) -> tuple[_Form, ...]:
        return tuple(map(self._form, sources, self._rows))

    def _most_layers(self, forms: Sequence[_Form]) -> int:
        nbytes = sum(form.nbytes for form in forms)
        return max(1, min(self._most, self._layers, GROUP_BYTES // nbytes))

    def _form(self, source: Encoded | None, rows: slice) -> _Form:
        tokens = rows.stop - rows.start
        if source is not None and _placed_as_stored(source):
            return _encoded(source.spec, tokens)
        kv_heads, head_dim = self._shape
        half = tokens * kv_heads * head_dim * self._dtype.itemsize
        return _Form(2 * half, (0, half))

    def _placement(self, forms: Sequence[_Form]) -> Placement:
        """Put the segments one after the other, in a buffer that is large enough for a group."""
        segments, end, most = [], 0, self._most_layers(forms)
        for form, rows in zip(forms, self._rows, strict=True):
            k, v, *scales = (end + start for start in form.starts)
            of_k, of_v = scales or (0, 0)
            tokens = rows.stop - rows.start
            segments.append(
                StagedSegment(rows.start, tokens, bool(scales), k, v, of_k, of_v, form.nbytes)
            )
            end += -(-form.nbytes * most // ALIGNMENT) * ALIGNMENT
        if end > len(self._buffer):
            self._buffer = torch.empty(end, dtype=torch.uint8, device=self._device)
        return Placement(segments, self._dtype.itemsize, self._device)

    def _copy_segment(
        self,
        segment: CachedSegment,
        sources: Sequence[Encoded | None],
        layer: int,
        form: _Form,
        at: int,
    ) -> None:
        """Copy a segment's layers from `layer` on to byte `at` of the buffer and behind."""
        first = sources[0]
        if isinstance(first, EncodedChunk) and _placed_as_stored(first):
            target = self._buffer[at : at + len(sources) * form.nbytes]
            target.copy_(first.layer_bytes(layer, len(sources)), non_blocking=True)
            return
        for number, source in enumerate(sources):
            target = self._buffer[at + number * form.nbytes :][: form.nbytes]
            if source is not None and _placed_as_stored(source):
                target.copy_(source.layer_bytes(layer + number), non_blocking=True)
                continue
            if source is not None:
                k, v = source.layer(layer + number, device=self._device, non_blocking=True)
            else:
                k, v = segment.layer(layer + number)
            for x, part in zip((k, v), target.view(self._dtype).chunk(2), strict=True):
                part.view(x.shape).copy_(x, non_blocking=True)


def _placed_as_stored(source: Encoded) -> bool:
    # Kernels read a tensor for keys and one for values.
    return source.spec.codec in kv_placement_gpu.CODECS and not source.spec.values_are_keys


@lru_cache(maxsize=1024)
def _encoded(spec: ChunkSpec, tokens: int) -> _Form:
    """Return the form of a layer as it is stored."""
    entries = layer_layout(replace(spec, tokens=tokens))
    return _Form(entries[-1].end, tuple(entry.start for entry in entries))
