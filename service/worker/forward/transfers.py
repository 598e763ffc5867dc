"""Stored layers on their way to a GPU: the next one is copied while the GPU computes this one.

    aside    │ copy 0 │ copy 1 │        │ copy 2 │
    compute           │ place 0, layer 0 ...     │ place 1, layer 1 ...

Codecs that the placing kernel decodes itself are copied as they are stored; others are decoded on
the device. Only layers that have arrived in host memory are copied ahead.
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
"""k and v, each as `kv_placement_gpu.place` takes them."""


@runtime_checkable
class ArrivingSegment(Protocol):
    """Stored KV that may still be on its way from the store."""

    def arrived(self, layer: int) -> bool:
        """Whether the layer is in host memory."""
        ...

    def stored(self, layer: int) -> EncodedChunk | EncodedBlocks | None:
        """What a layer that arrived is in, as it is stored; None if it was decoded."""
        ...


class Side(Protocol):
    """Where copies run."""

    def copying(self) -> AbstractContextManager[None]: ...

    def needed(self, parts: Sequence[Parts]) -> None: ...

    def finish(self) -> None: ...


class Aside:
    """A stream of a GPU beside the one that computes."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def copying(self) -> Iterator[None]:
        with torch.cuda.stream(self._stream):
            yield

    def needed(self, parts: Sequence[Parts]) -> None:
        """What computes from now on waits for these, which stay as long as it reads them."""
        computing = torch.cuda.current_stream()
        computing.wait_stream(self._stream)
        for k, v in parts:
            for tensor in (*k, *v):
                tensor.record_stream(computing)

    def finish(self) -> None:
        """Nothing reads host memory any more."""
        self._stream.synchronize()


class InTurn:
    """Nothing runs beside anything: each copy when it is asked for."""

    @contextmanager
    def copying(self) -> Iterator[None]:
        yield

    def needed(self, parts: Sequence[Parts]) -> None: ...

    def finish(self) -> None: ...


class Transfers:
    """Layers of these segments, in ascending order. `finish` it before they are given back."""

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
        """Every segment's k and v of a layer, on the device. All of them have arrived."""
        ahead, self._ahead = self._ahead, None
        parts = ahead[1] if ahead is not None and ahead[0] == layer else self._copied(layer)
        self._side.needed(parts)
        return parts

    def begin(self, layer: int) -> None:
        """Copy a layer that will be asked for next, if there is such a layer and it has arrived."""
        if layer < self._layers and all(_arrived(stored, layer) for stored in self._segments):
            self._ahead = layer, self._copied(layer)

    def finish(self) -> None:
        self._ahead = None
        self._side.finish()

    def _copied(self, layer: int) -> list[Parts]:
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
