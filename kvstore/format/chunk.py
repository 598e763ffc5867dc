"""Encoded chunks in memory, whole or some blocks of them: made from tensors, and decoded back.

A block is 64 neighbouring tokens. The selected blocks of a layer are kept as if they were a whole
layer with only those tokens (see `tensor_layout.py`). So they move to a device in one copy, and
every codec decodes them like a layer.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvstitch.kvstore.errors import ChunkCorrupt, ChunkSpecError
from kvstitch.kvstore.format.buffers import ByteRange, allocate, view_bytes, write_values
from kvstitch.kvstore.format.chunk_header import ChunkHeader, build_header, refuse_bad
from kvstitch.kvstore.format.chunk_identity import ChunkSpec
from kvstitch.kvstore.format.codecs import Role, codec
from kvstitch.kvstore.format.safetensors_header import BlockDigests
from kvstitch.kvstore.format.tensor_layout import (
    STATE,
    blocks_layout,
    decode_layer,
    layer_entries,
    layer_state,
    tensor_layout,
)


@dataclass(frozen=True, eq=False)
class EncodedChunk:
    """An immutable chunk."""

    header: ChunkHeader  # its validated header
    # Host uint8 `[header.nbytes]`, contiguous. It is shared with every reader and with the memory
    # tier: never write into it or into views of it.
    data: Tensor
    owner: str = ""  # whose key seals it in tiers that are not memory

    def __post_init__(self) -> None:
        if self.data.numel() != self.header.nbytes:
            raise ChunkCorrupt(f"data has {self.data.numel()} bytes, not {self.header.nbytes}")

    @property
    def spec(self) -> ChunkSpec:
        return self.header.spec

    @property
    def header_bytes(self) -> bytes:
        return self.header.raw

    @property
    def nbytes(self) -> int:
        """Bytes of the whole file, header included."""
        return self.header.file_bytes

    def under(self, key: str, owner: str = "") -> "EncodedChunk":
        """Return the same chunk of an owner with its key in the header; it shares `data`."""
        if (key, owner) == (self.header.key, self.owner):
            return self
        header = self.header
        if key != header.key:
            header = build_header(header.spec, header.digests, key)
        return EncodedChunk(header, self.data, owner)

    def layer_bytes(self, layer: int, layers: int = 1) -> Tensor:
        """Return the stored bytes of `layers` layers: uint8, a view of `data`."""
        start, _ = self.header.layer_range(layer)
        _, end = self.header.layer_range(layer + layers - 1)
        return self.data[start:end]

    def layer(
        self, layer: int, *, device: torch.device | str | None = None, non_blocking: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return k (before RoPE) and v, `[tokens, kv_heads, head_dim]`, decoded on the device; on
        the host the raw codec returns views of `data`: never write into them."""
        raw = self.layer_bytes(layer)
        if device is not None:
            raw = raw.to(device, non_blocking=non_blocking)
        return decode_layer(self.spec, raw)

    def state(self, layer: int) -> tuple[Tensor, str]:
        """Return bytes of what a layer stores for those that keep a state, and their codec."""
        return layer_state(self.spec, self.layer_bytes(layer)), self.spec.codec

    def raw_layers(self) -> list[tuple[Tensor, Tensor]] | None:
        """Return what `layer` returns for every layer, made at once, which takes a tenth of the
        time; None where data are encoded or not aligned."""
        spec = self.spec
        aligned = self.data.storage_offset() % spec.torch_dtype.itemsize == 0
        if spec.codec != "raw" or spec.state or not aligned:
            return None
        whole = self.data.view(spec.torch_dtype).view(spec.layers, -1, *spec.shape)
        k, v = whole[:, 0], whole[:, -1]  # one and the same where v is not stored
        return list(zip(k.unbind(), v.unbind(), strict=True))

    def verify(self) -> None:
        """Raise ChunkCorrupt if a byte of the data differs from what was written."""
        blocks = range(self.spec.blocks)
        for layer in range(self.spec.layers):
            raw = view_bytes(self.layer_bytes(layer))
            refuse_bad(layer, self.header.bad_blocks(layer, blocks, raw))


def encode_chunk(
    spec: ChunkSpec,
    k: Sequence[Tensor],
    v: Sequence[Tensor],
    *,
    states: Sequence[Tensor] | None = None,
    pin: bool = False,
) -> EncodedChunk:
    """Encode keys before RoPE and values, `[tokens, kv_heads, head_dim]` per layer; `states` are
    the bytes of layers that keep a state, uint8, at most `spec.state` of each. Raises
    ChunkSpecError: they are not as the spec says, or the codec cannot represent a value."""
    _check_tensors(spec, k, v)
    entries = tensor_layout(spec)
    chunk_codec = codec(spec.codec)
    data = allocate(entries[-1].end, pin=pin)
    view = view_bytes(data)
    by_name = {entry.name: entry for entry in entries}
    digests: dict[str, BlockDigests] = {}
    roles: list[tuple[Role, Sequence[Tensor]]] = [("k", k), ("v", v)]
    if spec.values_are_keys:
        roles.pop()
    for role, tensors in roles:
        parts = chunk_codec.parts(role, spec)
        for layer, tensor in enumerate(tensors):
            encoded = chunk_codec.encode(role, tensor.detach())
            for part, stored in zip(parts, encoded, strict=True):
                entry = by_name[f"{role}.{layer}{part.suffix}"]
                write_values(data[entry.start : entry.end], stored)
                ranges = (entry.blocks_range(block, block) for block in range(spec.blocks))
                digests[entry.name] = BlockDigests.of(view[start:end] for start, end in ranges)
    for layer, state in enumerate(states or ()):
        entry = by_name[f"{STATE}.{layer}"]
        target = data[entry.start : entry.end]
        target.zero_()
        target[: len(state)] = state
        ranges = (entry.blocks_range(block, block) for block in range(spec.blocks))
        digests[entry.name] = BlockDigests.of(view[start:end] for start, end in ranges)
    return EncodedChunk(build_header(spec, digests), data)


def _check_tensors(spec: ChunkSpec, k: Sequence[Tensor], v: Sequence[Tensor]) -> None:
    for role, tensors in (("k", k), ("v", v)):
        if len(tensors) != spec.layers:
            raise ChunkSpecError(f"{role} has {len(tensors)} layers, the spec {spec.layers}")
        for layer, tensor in enumerate(tensors):
            if tuple(tensor.shape) != spec.shape or tensor.dtype != spec.torch_dtype:
                raise ChunkSpecError(
                    f"{role}[{layer}] is {tensor.dtype} {tuple(tensor.shape)}, "
                    f"the spec says {spec.torch_dtype} {spec.shape}"
                )


BlockSelection = Mapping[int, tuple[int, ...]]
"""Block numbers by layer; layers and blocks ascending, no block twice."""


@dataclass(frozen=True, eq=False)
class LayerBlocks:
    """Some blocks of one layer in their stored form."""

    blocks: tuple[int, ...]
    data: Tensor


@dataclass(frozen=True, eq=False)
class EncodedBlocks:
    """Intact blocks of one chunk, still encoded."""

    spec: ChunkSpec  # the spec of the whole chunk
    # The blocks by layer. A layer that was requested without blocks has none.
    layers: Mapping[int, LayerBlocks]

    @property
    def nbytes(self) -> int:
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

    def state(self, layer: int) -> tuple[Tensor, str]:
        """Return what `EncodedChunk.state` returns, of a layer with all its blocks."""
        return layer_state(self.spec, self._layer(layer).data), self.spec.codec

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
