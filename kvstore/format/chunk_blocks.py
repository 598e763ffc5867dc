"""Some blocks of some layers: where their bytes are, whether they are intact, and their tensors.

A block is 64 neighbouring tokens. The selected blocks of a layer are kept as if they were a whole
layer with only those tokens (see `tensor_layout.py`). So they move to a device in one copy, and
every codec decodes them like a layer.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from kvstore.errors import ChunkCorrupt, ChunkSpecError
from kvstore.format.buffers import ByteRange, view_bytes
from kvstore.format.chunk_header import BlockCheck, ChunkHeader
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
        """Decode the blocks of one layer.

        Args:
            layer: the layer's number.
            device: move the encoded bytes there first and decode on that device.
            non_blocking: do not wait for the copy to the device.

        Returns:
            k (before RoPE) and v, each `[n, kv_heads, head_dim]`.

        Raises:
            ChunkSpecError: the layer was not requested.
        """
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
        """Return the stored bytes of one layer's blocks: uint8, like a layer of their tokens.

        Raises:
            ChunkSpecError: the layer was not requested.
        """
        return self._layer(layer).data

    def _layer(self, layer: int) -> LayerBlocks:
        if layer not in self.layers:
            raise ChunkSpecError(f"layer {layer} was not asked for")
        return self.layers[layer]


def block_selection(layer_blocks: Mapping[int, Collection[int]]) -> BlockSelection:
    """Sort layers and blocks in ascending order and keep each block once."""
    return {layer: tuple(sorted(set(layer_blocks[layer]))) for layer in sorted(layer_blocks)}


def check_selection(selection: BlockSelection, spec: ChunkSpec) -> None:
    """Check that a chunk has these layers and blocks.

    Raises:
        ChunkSpecError: it does not; the message names the first one that is missing.
    """
    for layer, blocks in selection.items():
        if not 0 <= layer < spec.layers:
            raise ChunkSpecError(f"layer {layer} is outside a chunk of {spec.layers} layers")
        if blocks and not 0 <= blocks[0] <= blocks[-1] < spec.blocks:
            wrong = blocks[0] if blocks[0] < 0 else blocks[-1]
            raise ChunkSpecError(f"block {wrong} is outside a chunk of {spec.blocks} blocks")


def selection_ranges(selection: BlockSelection, spec: ChunkSpec) -> list[ByteRange]:
    """Return the byte ranges of the selected blocks, ascending; neighbours in a layer are one.

    Raises:
        ChunkSpecError: the chunk has no such layer.
    """
    ranges: list[ByteRange] = []
    for layer, blocks in selection.items():
        base = layer_entries(spec, layer)[0].start
        ranges.extend(
            ByteRange(layer, base + start, base + end)
            for start, end in blocks_layout(spec, blocks).ranges
        )
    return ranges


class BlockVerifier:
    """Verifies blocks while they arrive, one layer at a time.

    Bytes that were just copied are still in the CPU's cache, and the disk or socket delivers the
    next ones while these are checked.

    Args:
        selection: the blocks being read. Their bytes arrive in the order of `selection_ranges`.
        check: what opens the blocks of a sealed chunk in place; None: the header's own.
    """

    def __init__(self, selection: BlockSelection, check: BlockCheck | None = None) -> None:
        self._layers = list(selection.items())
        self._check = check
        self._data: Tensor | None = None
        self._checked = 0
        self._end = 0  # where the checked layers end
        self._next_end = 0
        self._bad: dict[int, list[int]] = {}

    def __call__(self, header: ChunkHeader, data: Tensor, done: int) -> None:
        """Check every layer that lies in the first `done` bytes of `data`."""
        if data is not self._data:  # a tier may begin anew, in other memory
            self._data, self._checked, self._end, self._next_end = data, 0, 0, 0
            self._bad.clear()
        if done < self._next_end:
            return
        view = view_bytes(data)
        while self._checked < len(self._layers):
            layer, blocks = self._layers[self._checked]
            end = self._end + blocks_layout(header.spec, blocks).nbytes
            if end > done:
                self._next_end = end
                return
            wrong = (self._check or header.bad_blocks)(layer, blocks, view[self._end : end])
            if wrong:
                self._bad[layer] = wrong
            self._checked += 1
            self._end = end

    def result(
        self, header: ChunkHeader, data: Tensor
    ) -> tuple[EncodedBlocks, list[tuple[int, int]]]:
        """Check what is left, and sort out the bad blocks.

        Returns:
            The intact blocks, and (layer, block) of those that differ from what was written.

        Raises:
            ChunkCorrupt: `data` does not have the length of the selected blocks.
        """
        self(header, data, data.numel())
        ends = accumulate(blocks_layout(header.spec, blocks).nbytes for _, blocks in self._layers)
        borders = [0, *ends]
        if borders[-1] != data.numel():
            raise ChunkCorrupt(f"the blocks have {data.numel()} bytes, not {borders[-1]}")
        layers: dict[int, LayerBlocks] = {}
        for (layer, blocks), (start, end) in zip(self._layers, pairwise(borders), strict=True):
            held = LayerBlocks(blocks, data[start:end])
            wrong = self._bad.get(layer)
            layers[layer] = _without(held, wrong, header.spec) if wrong else held
        bad = [(layer, block) for layer, wrong in self._bad.items() for block in wrong]
        return EncodedBlocks(header.spec, layers), bad


def _without(held: LayerBlocks, wrong: Sequence[int], spec: ChunkSpec) -> LayerBlocks:
    """Return the same layer without the bytes of the wrong blocks."""
    pieces = [held.data[:0]]
    for of_tensor in blocks_layout(spec, held.blocks).pieces:
        for block, piece in zip(held.blocks, of_tensor, strict=True):
            if block not in wrong:
                pieces.append(held.data[piece])
    kept = tuple(block for block in held.blocks if block not in wrong)
    return LayerBlocks(kept, torch.cat(pieces))
