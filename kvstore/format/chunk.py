"""One encoded chunk in memory: header and data; encoding from tensors and decoding back."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvstore.errors import ChunkCorrupt, ChunkSpecError
from kvstore.format.buffers import allocate, typed_view, view_bytes
from kvstore.format.checksum import BlockDigests
from kvstore.format.chunk_header import ChunkHeader, build_header, refuse_bad
from kvstore.format.chunk_identity import ChunkSpec
from kvstore.format.codecs import Role, codec
from kvstore.format.tensor_layout import decode_layer, tensor_layout


@dataclass(frozen=True, eq=False)
class EncodedChunk:
    """An immutable chunk.

    Attributes:
        header: its validated header.
        data: host uint8 `[header.nbytes]`, contiguous. It is shared with every reader and with the
            memory tier: never write into it or into views of it.
        owner: whose key seals it in tiers that are not memory.
    """

    header: ChunkHeader
    data: Tensor
    owner: str = ""

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
        header = self.header.under(key)
        if (header, owner) == (self.header, self.owner):
            return self
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

    def raw_layers(self) -> list[tuple[Tensor, Tensor]] | None:
        """Return what `layer` returns for every layer, made at once, which takes a tenth of the
        time; None where data are encoded or not aligned."""
        spec = self.spec
        if spec.codec != "raw" or self.data.storage_offset() % spec.torch_dtype.itemsize:
            return None
        k, v = self.data.view(spec.torch_dtype).view(spec.layers, 2, *spec.shape).unbind(1)
        return list(zip(k.unbind(), v.unbind(), strict=True))

    def verify(self) -> None:
        """Raise ChunkCorrupt if a byte of the data differs from what was written."""
        blocks = range(self.spec.blocks)
        for layer in range(self.spec.layers):
            raw = view_bytes(self.layer_bytes(layer))
            refuse_bad(layer, self.header.bad_blocks(layer, blocks, raw))


def encode_chunk(
    spec: ChunkSpec, k: Sequence[Tensor], v: Sequence[Tensor], *, pin: bool = False
) -> EncodedChunk:
    """Encode keys before RoPE and values, `[tokens, kv_heads, head_dim]` per layer.

    Raises:
        ChunkSpecError: they are not as the spec says, or the codec cannot represent a value.
    """
    _check_tensors(spec, k, v)
    entries = tensor_layout(spec)
    chunk_codec = codec(spec.codec)
    data = allocate(entries[-1].end, pin=pin)
    view = view_bytes(data)
    by_name = {entry.name: entry for entry in entries}
    digests: dict[str, BlockDigests] = {}
    roles: tuple[tuple[Role, Sequence[Tensor]], ...] = (("k", k), ("v", v))
    for role, tensors in roles:
        parts = chunk_codec.parts(role, spec)
        for layer, tensor in enumerate(tensors):
            encoded = chunk_codec.encode(role, tensor.detach())
            for part, stored in zip(parts, encoded, strict=True):
                entry = by_name[f"{role}.{layer}{part.suffix}"]
                target = data[entry.start : entry.end]
                # Copies directly to its place in the file, whatever the strides.
                typed_view(target, entry.dtype, entry.shape).copy_(stored)
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
