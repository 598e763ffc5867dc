"""Layers of a chunk in host memory. What is stored in 8 bits a kernel decodes
(`src/stored_layer.c`), and its results equal the codecs' bit by bit."""

from __future__ import annotations

from array import array

import torch
from torch import Tensor

from kvstitch.kvstore import EncodedChunk
from kvstitch.kvstore.format.tensor_layout import layer_layout
from kvstitch.service.worker.kernels.cpu import native

GROUPS = {"k8v8": 64, "int8": 1}
"""Tokens that have a scale in common, of keys, by the codecs that the kernel knows."""


class DecodedLayers:
    """A `CachedSegment` that decodes each layer of a chunk once, when it is first read."""

    def __init__(self, chunk: EncodedChunk) -> None:
        self._chunk, self.state = chunk, chunk.state
        self._layers = dict(enumerate(chunk.raw_layers() or ()))
        self._struct = _struct(chunk)

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        found = self._layers.get(layer)
        if found is None and self._struct is not None:
            k, v = torch.empty(2, *self._chunk.spec.shape, dtype=torch.bfloat16).unbind()
            native.call("decode_stored_layer", self._struct, layer, k, v)
            found = k, v
        self._layers[layer] = found or self._chunk.layer(layer)
        return self._layers[layer]


def _struct(chunk: EncodedChunk) -> array[int] | None:
    """Return the C `struct stored_chunk`; None if the kernel does not read such chunks."""
    spec, at = chunk.spec, chunk.data.data_ptr()
    known = spec.codec in GROUPS and spec.torch_dtype == torch.bfloat16 and spec.head_dim % 16 == 0
    if native.module() is None or not known or spec.values_are_keys:
        return None
    places = {entry.name: at + entry.start for entry in layer_layout(spec)}
    names = ("k.0", "v.0", "k.0.scale", "v.0.scale", "k.0.min")
    sizes = (chunk.header.nbytes // spec.layers, *spec.shape, GROUPS[spec.codec])
    return array("q", (*(places.get(name, 0) for name in names), *sizes))
