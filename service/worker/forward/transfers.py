"""Copies stored layers to a GPU: the next layer is copied while the GPU computes the current one.

    copying stream     │ copy 0 │ copy 1 │        │ copy 2 │
    computing stream            │ place 0, layer 0 ...     │ place 1, layer 1 ...

KV in codecs that the placement kernel can decode is copied as it is stored; KV in other codecs is
decoded on the device first. A layer is only copied ahead if it has been read from the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from kvstore import EncodedBlocks, EncodedChunk
from service.worker.core.layer_view import CachedSegment
from service.worker.kernels.gpu import kv_placement_gpu

Parts = tuple[Sequence[Tensor], Sequence[Tensor]]
"""Keys and values of one segment at one layer, each as `kv_placement_gpu.place` takes them."""


@runtime_checkable
class ArrivingSegment(Protocol):
    """Stored KV that may still be being read from the store."""

    def arrived(self, layer: int) -> bool:
        """Whether the layer is in host memory."""
        ...

    def stored(self, layer: int) -> EncodedChunk | EncodedBlocks | None:
        """The encoded KV that contains an arrived layer; None if the layer is already decoded."""
        ...


class Side(Protocol):
    """Runs the copies."""

    def copying(self) -> AbstractContextManager[None]:
        """Copies are started within this context."""
        ...

    def needed(self, parts: Sequence[Parts]) -> None:
        """What is computed from now on reads these parts, so their copies must be finished."""
        ...

    def finish(self) -> None:
        """Waits until no copy reads host memory any more."""
        ...


class Aside:
    """Runs copies on a GPU stream beside the one that computes."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def copying(self) -> Iterator[None]:
        with torch.cuda.stream(self._stream):
            yield

    def needed(self, parts: Sequence[Parts]) -> None:
        computing = torch.cuda.current_stream()
        computing.wait_stream(self._stream)
        for k, v in parts:
            for tensor in (*k, *v):
                # The allocator must not reuse this memory while the computing stream reads it.
                tensor.record_stream(computing)

    def finish(self) -> None:
        self._stream.synchronize()


class InTurn:
    """Runs each copy immediately, on a device without streams."""

    @contextmanager
    def copying(self) -> Iterator[None]:
        yield

    def needed(self, parts: Sequence[Parts]) -> None: ...

    def finish(self) -> None: ...


class Transfers:
    """Copies the layers of some segments to a device, in ascending order.

    `finish` must be called before the segments' memory is released.

    Args:
        segments: stored KV of the segments.
        layers: number of layers of the model.
        side: runs the copies; by default beside the computation on a GPU, immediately elsewhere.
    """

    def __init__(
        self,
        segments: Sequence[CachedSegment],
        layers: int,
        device: torch.device,
        side: Side | None = None,
    ) -> None:
        self._segments = segments
        self._layers = layers
        self._device = device
        self._side = side or (Aside(device) if device.type == "cuda" else InTurn())
        self._ahead: tuple[int, list[Parts]] | None = None

    def layer(self, layer: int) -> list[Parts]:
        """Every segment's keys and values of a layer, on the device; all must have arrived."""
        ahead, self._ahead = self._ahead, None
        parts = ahead[1] if ahead is not None and ahead[0] == layer else self._copy_layer(layer)
        self._side.needed(parts)
        return parts

    def begin(self, layer: int) -> None:
        """Starts copying the layer that is needed next, if it exists and has arrived."""
        if layer < self._layers and all(_arrived(stored, layer) for stored in self._segments):
            self._ahead = layer, self._copy_layer(layer)

    def finish(self) -> None:
        """Waits until no copy reads host memory any more."""
        self._ahead = None
        self._side.finish()

    def _copy_layer(self, layer: int) -> list[Parts]:
        with self._side.copying():
            return [_copy(stored, layer, self._device) for stored in self._segments]


def _arrived(stored: CachedSegment, layer: int) -> bool:
    return not isinstance(stored, ArrivingSegment) or stored.arrived(layer)


def _copy(stored: CachedSegment, layer: int, device: torch.device) -> Parts:
    source = stored.stored(layer) if isinstance(stored, ArrivingSegment) else stored
    if isinstance(source, EncodedChunk | EncodedBlocks):
        if source.spec.codec in kv_placement_gpu.CODECS:
            return source.encoded_layer(layer, device=device)
        k, v = source.layer(layer, device=device, non_blocking=True)
    else:
        k, v = (x.to(device, non_blocking=True) for x in stored.layer(layer))
    return (k.contiguous(),), (v.contiguous(),)
