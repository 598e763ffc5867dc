"""Some blocks of some layers: where their bytes are, whether they are intact, and their tensors.

A block is 64 neighbouring tokens. The selected blocks of a layer are kept as if they were a whole
layer with only those tokens (see `tensor_layout.py`). So they move to a device in one copy, and
every codec decodes them like a layer.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvstore.errors import ChunkSpecError
from kvstore.format.buffers import ByteRange
from kvstore.format.chunk_identity import ChunkSpec
from kvstore.format.tensor_layout import blocks_layout, decode_layer, layer_entries

BlockSelection = Mapping[int, tuple[int, ...]]
"""Block numbers by layer; layers and blocks ascending, no block twice."""


@dataclass(frozen=True, eq=False)
class LayerBlocks:
    """Some blocks of one layer in their stored form."""

    blocks: tuple[int, ...]
    data: Tensor


@dataclass(frozen=True, eq=False)
class EncodedBlocks:
    """Intact blocks of one chunk, still encoded.

    Attributes:
        spec: the spec of the whole chunk.
        layers: the blocks by layer. A layer that was requested without blocks has none.
    """

    spec: ChunkSpec
    layers: Mapping[int, LayerBlocks]

    @property
    def nbytes(self) -> int:
        """Bytes of the encoded blocks."""
        return sum(layer.data.numel() for layer in self.layers.values())

    @property
    def count(self) -> int:
        """Number of (layer, block) pairs."""
        return sum(len(layer.blocks) for layer in self.layers.values())

    def tokens(self, layer: int) -> Tensor:
        """Return the positions in the chunk of the rows of `layer(layer)`: int64 `[n]`."""
        spans = [self.spec.block_span(block) for block in self._layer(layer).blocks]
        if not spans:
            return torch.empty(0, dtype=torch.int64)
        return torch.cat([torch.arange(start, stop) for start, stop in spans])

    def layer(
        self, layer: int, *, device: torch.device | str | None = None, non_blocking: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return k (before RoPE) and v, `[n, kv_heads, head_dim]`, decoded on the device."""
        held = self._layer(layer)
        tokens = blocks_layout(self.spec, held.blocks).tokens
        raw = held.data
        if device is not None:
            raw = raw.to(device, non_blocking=non_blocking)
        if not tokens:
            shape = (0, self.spec.kv_heads, self.spec.head_dim)
            empty = torch.empty(shape, dtype=self.spec.torch_dtype, device=raw.device)
            return empty, empty
        return decode_layer(replace(self.spec, tokens=tokens), raw)

    def layer_bytes(self, layer: int) -> Tensor:
        """Return the stored bytes of one layer's blocks: uint8, like a layer of their tokens."""
        return self._layer(layer).data

    def _layer(self, layer: int) -> LayerBlocks:
        if layer not in self.layers:
            raise ChunkSpecError(f"layer {layer} was not asked for")
        return self.layers[layer]


def block_selection(layer_blocks: Mapping[int, Collection[int]]) -> BlockSelection:
    """Sort layers and blocks in ascending order and keep each block once."""
    return {layer: tuple(sorted(set(layer_blocks[layer]))) for layer in sorted(layer_blocks)}


def check_selection(selection: BlockSelection, spec: ChunkSpec) -> None:
    """Raise ChunkSpecError that names the first layer or block that the chunk does not have."""
    for layer, blocks in selection.items():
        if not 0 <= layer < spec.layers:
            raise ChunkSpecError(f"layer {layer} is outside a chunk of {spec.layers} layers")
        if blocks and not 0 <= blocks[0] <= blocks[-1] < spec.blocks:
            wrong = blocks[0] if blocks[0] < 0 else blocks[-1]
            raise ChunkSpecError(f"block {wrong} is outside a chunk of {spec.blocks} blocks")


def selection_ranges(selection: BlockSelection, spec: ChunkSpec) -> list[ByteRange]:
    """Return the byte ranges of the selected blocks, ascending; neighbours in a layer are one."""
    ranges: list[ByteRange] = []
    for layer, blocks in selection.items():
        base = layer_entries(spec, layer)[0].start
        ranges.extend(
            ByteRange(layer, base + start, base + end)
            for start, end in blocks_layout(spec, blocks).ranges
        )
    return ranges
