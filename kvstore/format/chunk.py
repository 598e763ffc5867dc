"""One encoded chunk in memory: header and data; encoding from tensors and decoding back."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvstore.errors import ChunkCorrupt, ChunkRefused, ChunkSpecError
from kvstore.format.buffers import allocate, typed_view, view_bytes
from kvstore.format.checksum import BlockDigests
from kvstore.format.chunk_header import (
    UNNAMED,
    BlockCheck,
    ChunkHeader,
    build_header,
    refuse_bad,
)
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
        """Return the stored bytes of one layer, or of some from it on: uint8, a view of `data`."""
        start, _ = self.header.layer_range(layer)
        _, end = self.header.layer_range(layer + layers - 1)
        return self.data[start:end]

    def layer(
        self, layer: int, *, device: torch.device | str | None = None, non_blocking: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Decode one layer.

        Args:
            layer: the layer's number.
            device: move the encoded bytes there first and decode on that device.
            non_blocking: do not wait for the copy to the device.

        Returns:
            k (before RoPE) and v, each `[tokens, kv_heads, head_dim]` of `spec.dtype`. On the host
            the raw codec returns views of `data`: copy them before writing.

        Raises:
            ChunkSpecError: the chunk has no such layer.
        """
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

    def verify(self, layers: Iterable[int] | None = None) -> None:
        """Verify the data of these layers (default: all) against the header's digests.

        Raises:
            ChunkCorrupt: a byte differs from what was written.
        """
        view = view_bytes(self.data)
        for layer in range(self.spec.layers) if layers is None else layers:
            start, end = self.header.layer_range(layer)
            self.header.verify_layer(layer, view[start:end])


def encode_chunk(
    spec: ChunkSpec, k: Sequence[Tensor], v: Sequence[Tensor], *, pin: bool = False
) -> EncodedChunk:
    """Encode one chunk.

    Args:
        spec: describes the tensors; its codec encodes them on the device where they are.
        k: keys before RoPE, per layer `[tokens, kv_heads, head_dim]` of `spec.dtype`.
        v: values, in the same form.
        pin: put the data into pinned memory.

    Raises:
        ChunkSpecError: number of layers, shape or dtype differ from the spec, the codec is unknown,
            or the codec cannot represent a value.
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


class ChunkVerifier:
    """Verifies a chunk while it arrives, one layer at a time, like `BlockVerifier`.

    Args:
        key: refuse the chunk of any other key, before the data are verified.
        expect: refuse any other spec, before the data are verified.
        check_of: returns what checks the blocks of a header's chunk.
    """

    def __init__(
        self,
        key: str,
        expect: ChunkSpec | None,
        check_of: Callable[[ChunkHeader], BlockCheck] = lambda header: header.bad_blocks,
    ) -> None:
        self._key = key
        self._expect = expect
        self._check_of = check_of
        self._check: BlockCheck | None = None
        self._data: Tensor | None = None
        self._checked = 0
        self._next_end = 0

    def __call__(self, header: ChunkHeader, data: Tensor, done: int) -> None:
        """Check every layer that lies in the first `done` bytes of `data`.

        Raises:
            ChunkRefused: the key or the spec is not the expected one.
            ChunkCorrupt: a byte differs from what was written.
        """
        if data is not self._data:  # a tier may begin anew, in other memory
            self._data, self._check, self._checked, self._next_end = data, None, 0, 0
        if done < self._next_end:
            return
        if self._check is None:
            require_chunk(header, self._key, self._expect)
            self._check = self._check_of(header)
        view = view_bytes(data)
        blocks = range(header.spec.blocks)
        while self._checked < header.spec.layers:
            start, end = header.layer_range(self._checked)
            if end > done:
                self._next_end = end
                return
            refuse_bad(self._checked, self._check(self._checked, blocks, view[start:end]))
            self._checked += 1


def require_chunk(header: ChunkHeader, key: str, expect: ChunkSpec | None) -> None:
    """Check that a header is that of the wanted chunk: its key, and its spec if one is expected.

    Raises:
        ChunkRefused: the key differs, or the spec; the message names the fields.
    """
    if header.key != key:
        stated = "has no key" if header.key == UNNAMED else f"has the key {header.key}"
        raise ChunkRefused(f"another chunk than expected: it {stated}")
    if expect is None or header.spec == expect:
        return
    fields = [
        name
        for name in ChunkSpec.__dataclass_fields__
        if getattr(header.spec, name) != getattr(expect, name)
    ]
    raise ChunkRefused(f"another chunk than expected: {', '.join(fields)} differ")


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
