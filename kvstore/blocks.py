"""Some blocks of some layers: which bytes they are, whether they are sound, and their tensors.

A block is 64 neighbouring tokens. The blocks of a layer are kept as a layer that has only their
tokens (:mod:`kvstore.layout`), so they move to a device in one copy and every codec decodes them as
it decodes a layer. Knows no key and no tier.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvstore.decode import decode_layer
from kvstore.errors import ChunkSpecError
from kvstore.header import ChunkHeader
from kvstore.layout import blocks_layout, layer_entries
from kvstore.ranges import ByteRange
from kvstore.spec import ChunkSpec

Selection = Mapping[int, tuple[int, ...]]
"""Layer to its blocks; both ascending, no block twice."""


@dataclass(frozen=True, eq=False)
class LayerBlocks:
    """Some blocks of one layer as they are stored.

    Attributes:
        blocks: their numbers, ascending.
        data: host uint8, laid out as a layer that has only their tokens. Never write into it.
    """

    blocks: tuple[int, ...]
    data: Tensor


@dataclass(frozen=True, eq=False)
class EncodedBlocks:
    """Sound blocks of one chunk, still encoded.

    Attributes:
        spec: the spec of the whole chunk.
        layers: layer to its blocks; a layer that was asked for without blocks has none.
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
        """Which tokens of the chunk the rows of ``layer(layer)`` are: int64 ``[n]``, ascending."""
        spans = [self.spec.block_span(block) for block in self._layer(layer).blocks]
        if not spans:
            return torch.empty(0, dtype=torch.int64)
        return torch.cat([torch.arange(start, stop) for start, stop in spans])

    def layer(
        self, layer: int, *, device: torch.device | str | None = None, non_blocking: bool = False
    ) -> tuple[Tensor, Tensor]:
        """k (before RoPE) and v of one layer's blocks, ``[n, kv_heads, head_dim]``.

        With ``device`` the encoded bytes are moved first and decoded there.

        Raises:
            ChunkSpecError: the layer was not asked for.
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

    def _layer(self, layer: int) -> LayerBlocks:
        if layer not in self.layers:
            raise ChunkSpecError(f"layer {layer} was not asked for")
        return self.layers[layer]


def select(layer_blocks: Mapping[int, Collection[int]]) -> Selection:
    """Layers and blocks in ascending order, each block once."""
    return {layer: tuple(sorted(set(layer_blocks[layer]))) for layer in sorted(layer_blocks)}


def check_selection(selection: Selection, spec: ChunkSpec) -> None:
    """Check that a chunk has these layers and blocks.

    Raises:
        ChunkSpecError: it does not; the message names the first that is missing.
    """
    for layer, blocks in selection.items():
        if not 0 <= layer < spec.layers:
            raise ChunkSpecError(f"layer {layer} is outside a chunk of {spec.layers} layers")
        if blocks and not 0 <= blocks[0] <= blocks[-1] < spec.blocks:
            wrong = blocks[0] if blocks[0] < 0 else blocks[-1]
            raise ChunkSpecError(f"block {wrong} is outside a chunk of {spec.blocks} blocks")


def ranges_of(selection: Selection, spec: ChunkSpec) -> list[ByteRange]:
    """Where the blocks lie, ascending; neighbours of one layer are one range.

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


def check_blocks(
    header: ChunkHeader, selection: Selection, data: Tensor
) -> tuple[EncodedBlocks, list[tuple[int, int]]]:
    """Split what was read into layers and verify every block of it.

    Args:
        header: of the chunk that the bytes were read from.
        selection: what was read.
        data: the bytes of ``ranges_of(selection, header.spec)`` one after the other.

    Returns:
        The sound blocks, and (layer, block) of those that differ from what was written.

    Raises:
        ChunkCorrupt: ``data`` has another length than those blocks.
    """
    spec = header.spec
    layers: dict[int, LayerBlocks] = {}
    bad: list[tuple[int, int]] = []
    offset = 0
    for layer, blocks in selection.items():
        nbytes = blocks_layout(spec, blocks).nbytes
        held = LayerBlocks(blocks, data[offset : offset + nbytes])
        offset += nbytes
        wrong = header.bad_blocks(layer, blocks, held.data)
        bad.extend((layer, block) for block in wrong)
        layers[layer] = _without(held, wrong, spec) if wrong else held
    return EncodedBlocks(spec, layers), bad


def _without(held: LayerBlocks, wrong: Sequence[int], spec: ChunkSpec) -> LayerBlocks:
    """The same layer with the bytes of the wrong blocks cut out."""
    pieces = [held.data[:0]]
    for _, block, start, end in blocks_layout(spec, held.blocks).pieces:
        if block not in wrong:
            pieces.append(held.data[start:end])
    kept = tuple(block for block in held.blocks if block not in wrong)
    return LayerBlocks(kept, torch.cat(pieces))
