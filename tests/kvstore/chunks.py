"""Small chunks for tests."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvstitch.kvstore import (
    ChunkHeader,
    ChunkSpec,
    EncodedBlocks,
    EncodedChunk,
    chunk_key,
    encode_chunk,
)
from kvstitch.kvstore.format.buffers import gather, total_bytes
from kvstitch.kvstore.format.chunk import BlockSelection, selection_ranges
from kvstitch.kvstore.format.chunk_header import UNNAMED
from kvstitch.kvstore.format.tensor_layout import TensorEntry, encoded_layer, tensor_layout


def make_spec(
    codec: str = "raw",
    dtype: str = "bfloat16",
    *,
    layers: int = 3,
    tokens: int = 70,
    fingerprint: str = "model-a",
) -> ChunkSpec:
    return ChunkSpec(
        fingerprint=fingerprint,
        codec=codec,
        dtype=dtype,
        layers=layers,
        kv_heads=2,
        head_dim=8,
        tokens=tokens,
    )


def make_tensors(spec: ChunkSpec, seed: int = 0) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)

    def one() -> Tensor:
        return torch.randn(spec.shape, generator=generator).to(spec.torch_dtype)

    return [one() for _ in range(spec.layers)], [one() for _ in range(spec.layers)]


def make_chunk(spec: ChunkSpec | None = None, seed: int = 0) -> EncodedChunk:
    spec = spec or make_spec()
    return encode_chunk(spec, *make_tensors(spec, seed))


def make_key(number: int = 0) -> str:
    return chunk_key(
        fingerprint="model-a",
        dtype="bfloat16",
        codec="raw",
        prefix_mode="none",
        prefix_ids=[],
        chunk_ids=[number],
    )


def chunk_file(chunk: EncodedChunk) -> bytes:
    """The bytes of the chunk's safetensors file."""
    return chunk.header_bytes + chunk.data.numpy().tobytes()


def tensors_of(header: ChunkHeader) -> dict[str, TensorEntry]:
    """Place and shape of each tensor of a chunk, by name."""
    return {entry.name: entry for entry in tensor_layout(header.spec)}


def gathered(chunk: EncodedChunk, selection: BlockSelection) -> Tensor:
    """The bytes of some blocks, one range after the other."""
    ranges = selection_ranges(selection, chunk.spec)
    data = torch.empty(total_bytes(ranges), dtype=torch.uint8)
    gather(chunk.data, ranges, data)
    return data


def same_chunk(a: EncodedChunk | None, b: EncodedChunk) -> bool:
    """Whether both hold the same KV, under whatever key."""
    if a is None or not torch.equal(a.data, b.data):
        return False
    return a.under(UNNAMED).header_bytes == b.under(UNNAMED).header_bytes


def encoded(chunk: EncodedChunk | EncodedBlocks, layer: int) -> tuple[Sequence[Tensor], ...]:
    """The stored tensors of k and of v of one layer, all of whose blocks there are."""
    return encoded_layer(chunk.spec, chunk.layer_bytes(layer))
