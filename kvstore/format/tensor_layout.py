"""Where the tensors of a chunk are in its data section, and how to get them back from its bytes.

Their places follow from the spec alone.

    | layer 0                             | layer 1 ...
    | k.0 | v.0 | k.0.scale | v.0.scale   |
    | block 0 | block 1 | ... |             each tensor's rows run along the tokens

So a layer is one byte range, all layers have the same layout, and a block of 64 tokens is one byte
range of each tensor. When some blocks of a layer are read one range after the other, the result is
laid out like a layer that has only their tokens:

    in the chunk    | k: 0 1 2 3 4 | v: 0 1 2 3 4 | k.scale: 0 1 2 3 4 | ...
    blocks 1 and 4  | k: 1 4 | v: 1 4 | k.scale: 1 4 | ...
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from kvstitch.kvstore.errors import ChunkSpecError
from kvstitch.kvstore.format.buffers import typed_view
from kvstitch.kvstore.format.chunk_identity import BLOCK_TOKENS, ChunkSpec
from kvstitch.kvstore.format.codecs import EncodedPart, Role, codec
from kvstitch.kvstore.format.safetensors_header import StoredTensor

ROLES: tuple[Role, Role] = ("k", "v")
STATE = "s"
STATE_ALIGNMENT = 16  # bytes


@dataclass(frozen=True)
class TensorEntry(StoredTensor):
    tokens_per_row: int = 1

    def blocks_range(self, first: int, last: int) -> tuple[int, int]:
        """Return the byte range `[start, end)` of the blocks `first` to `last`, both included."""
        row_bytes = (self.end - self.start) // self.shape[0]
        block_bytes = row_bytes * (BLOCK_TOKENS // self.tokens_per_row)
        end = self.start + (last + 1) * block_bytes
        return self.start + first * block_bytes, min(end, self.end)


@dataclass(frozen=True)
class BlocksLayout:
    """Where some blocks of a layer are. All offsets count from the start of that layer."""

    tokens: int
    nbytes: int
    ranges: tuple[tuple[int, int], ...]
    pieces: tuple[tuple[slice, ...], ...]


@lru_cache(maxsize=256)
def tensor_layout(spec: ChunkSpec) -> tuple[TensorEntry, ...]:
    """Return place and shape of every tensor of a chunk with this spec, in file order."""
    entries: list[TensorEntry] = []
    offset = 0
    for layer in range(spec.layers):
        for role, part in _layer_parts(spec):
            size = part.dtype.itemsize
            for length in part.shape:
                size *= length
            name = f"{role}.{layer}{part.suffix}"
            end = offset + size
            entries.append(
                TensorEntry(name, part.dtype, part.shape, offset, end, part.tokens_per_row)
            )
            offset = end
    return tuple(entries)


@lru_cache(maxsize=256)
def descriptions(spec: ChunkSpec) -> dict[str, dict[str, object]]:
    """Return what a header must say about every tensor. It is cached: never change it."""
    return {entry.name: entry.description() for entry in tensor_layout(spec)}


@lru_cache(maxsize=256)
def layer_layout(spec: ChunkSpec) -> tuple[TensorEntry, ...]:
    """Return the layout of one layer that starts at byte 0, its tensors named like layer 0's."""
    return tensor_layout(replace(spec, layers=1))


def layer_entries(spec: ChunkSpec, layer: int) -> tuple[TensorEntry, ...]:
    """Return place and shape of one layer's tensors, in file order."""
    if not 0 <= layer < spec.layers:
        raise ChunkSpecError(f"layer {layer} is outside a chunk of {spec.layers} layers")
    entries = tensor_layout(spec)
    count = len(entries) // spec.layers
    return entries[layer * count : (layer + 1) * count]


@lru_cache(maxsize=4096)
def blocks_layout(spec: ChunkSpec, blocks: tuple[int, ...]) -> BlocksLayout:
    """Return the layout of these blocks (ascending), which is the same in every layer."""
    spans = map(spec.block_span, blocks)
    tokens = sum(stop - start for start, stop in spans)
    if not tokens:
        return BlocksLayout(0, 0, (), ())
    neighbours = list(consecutive_runs(blocks))
    ranges: list[tuple[int, int]] = []
    for entry in layer_layout(spec):
        for first, last in neighbours:
            start, end = entry.blocks_range(first, last)
            if ranges and ranges[-1][1] == start:
                start = ranges.pop()[0]
            ranges.append((start, end))
    compact = layer_layout(replace(spec, tokens=tokens))
    pieces = tuple(
        tuple(slice(*entry.blocks_range(place, place)) for place in range(len(blocks)))
        for entry in compact
    )
    return BlocksLayout(tokens, compact[-1].end, tuple(ranges), pieces)


def consecutive_runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs `(first, last)` of consecutive numbers in an ascending sequence."""
    first = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            yield numbers[first], numbers[place - 1]
            first = place


def encoded_layer(spec: ChunkSpec, raw: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Split one layer's bytes (uint8) into the tensors of `Codec.parts` for k and for v."""
    k, v = (
        [
            typed_view(raw[place.start : place.end], place.dtype, place.shape)
            for place in layer_layout(spec)
            if place.name.startswith(role)
        ]
        for role in ROLES
    )
    return k, v


def decode_layer(spec: ChunkSpec, raw: Tensor) -> tuple[Tensor, Tensor]:
    """Decode one layer's bytes (uint8) on the device where they are."""
    k, v = encoded_layer(spec, raw)
    chunk_codec = codec(spec.codec)
    keys = chunk_codec.decode("k", k, spec)
    return keys, keys if spec.values_are_keys else chunk_codec.decode("v", v, spec)


def _layer_parts(spec: ChunkSpec) -> list[tuple[str, EncodedPart]]:
    """Return the parts of a layer: main tensors first, then scales."""
    roles = ROLES[:1] if spec.values_are_keys else ROLES
    parts = [(role, codec(spec.codec).parts(role, spec)) for role in roles]
    most = max(len(of_role) for _, of_role in parts)
    in_order: list[tuple[str, EncodedPart]] = [
        (role, of[i]) for i in range(most) for role, of in parts if i < len(of)
    ]
    if spec.state:
        # As many rows as there are tokens, so that it is verified, sealed and read like the others;
        # each a multiple of STATE_ALIGNMENT, so that the next layer begins at one.
        width = -(-spec.state // (spec.tokens * STATE_ALIGNMENT)) * STATE_ALIGNMENT
        in_order.append((STATE, EncodedPart("", torch.uint8, (spec.tokens, width))))
    return in_order


def layer_state(spec: ChunkSpec, raw: Tensor) -> Tensor:
    """Return what one layer's bytes (uint8), of all tokens, hold for layers that keep a state."""
    place = layer_layout(spec)[-1]
    return raw[place.start : place.end][: spec.state]
