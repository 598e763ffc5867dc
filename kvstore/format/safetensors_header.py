"""Checksums (xxh3) as text, and safetensors headers that are sealed with one of their own bytes.

    one buffer          "xxh3_128:<32 hex>"
    blocks of a tensor  "xxh3_64:<base64>", 64 bits per block, in order
    header              | u64 n | JSON, padded with spaces | data ...
                        0       8                 data_start = 8 + n, a multiple of 64

In place of digests a sealed chunk has the tags of its blocks, 128 bits each (sealed_chunk.py).
Checksums run at memory speed (about 10 GB/s on one core), and detect accidents, not forgery: 64
bits miss one damaged block in 2^64, and keep the digests of a chunk below 1 % of its bytes.

The writer of the safetensors package sorts tensors by dtype and name; this one keeps the given
order. The header's checksum covers the length, the JSON and the padding, with its own field set to
zeros. It is stored in the metadata, so any safetensors reader can open the file.
"""

import json
import struct
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from xxhash import xxh3_64_digest, xxh3_128_hexdigest

from kvstitch.kvstore.errors import ChunkCorrupt

XXH3_64, GCM = "xxh3_64", "aes-256-gcm"
BLOCK_DIGEST_BYTES = 8
_BYTES = {XXH3_64: BLOCK_DIGEST_BYTES, GCM: 16}
NO_CHECKSUM = f"xxh3_128:{'0' * 32}"
"""As long as a checksum."""

Buffer = bytes | bytearray | memoryview


def checksum(buffer: Buffer) -> str:
    return f"xxh3_128:{xxh3_128_hexdigest(buffer)}"


@dataclass(frozen=True)
class BlockDigests:
    """Digests of one tensor's blocks."""

    algorithm: str
    digests: bytes

    @classmethod
    def of(cls, blocks: Iterable[Buffer]) -> Self:
        return cls(XXH3_64, b"".join(map(xxh3_64_digest, blocks)))

    @classmethod
    def parse(cls, text: str, blocks: int) -> Self:
        """Read what the property `text` wrote."""
        name, _, encoded = text.partition(":")
        if name not in _BYTES:
            raise ChunkCorrupt(f"unknown algorithm of digests {name[:32]!r}")
        try:
            digests = a2b_base64(encoded, strict_mode=True)
        except ValueError as error:
            raise ChunkCorrupt(f"digests are not base64: {error}") from error
        if len(digests) != blocks * _BYTES[name]:
            raise ChunkCorrupt(f"{len(digests)} bytes of digests for {blocks} blocks")
        return cls(name, digests)

    @property
    def text(self) -> str:
        """The form that stands in a header: `<algorithm>:<base64>`."""
        return f"{self.algorithm}:{b64encode(self.digests).decode()}"

    def differing(self, blocks: Sequence[int], contents: Iterable[Buffer]) -> list[int]:
        """Return those blocks whose content does not match its digest."""
        # One C loop over all blocks: one Python call per block would cost as much as the hashing.
        found = list(map(xxh3_64_digest, contents))
        size = BLOCK_DIGEST_BYTES
        if len(blocks) * size == len(self.digests) and b"".join(found) == self.digests:
            return []
        return [
            block
            for block, digest in zip(blocks, found, strict=True)
            if digest != self.digests[block * size : (block + 1) * size]
        ]


ALIGNMENT = 64
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 16 << 20

SAFETENSORS_DTYPES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.bool: "BOOL",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint8: "U8",
}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of the data section."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int

    def description(self) -> dict[str, object]:
        """Return what a safetensors header says about it."""
        return {
            "dtype": SAFETENSORS_DTYPES[self.dtype],
            "shape": list(self.shape),
            "data_offsets": [self.start, self.end],
        }


@dataclass(frozen=True)
class SealedHeader:
    """A header whose checksum is right."""

    raw: bytes
    metadata: Mapping[str, str]
    tensors: Mapping[str, object]


def build_sealed(metadata: Mapping[str, str], tensors: Iterable[StoredTensor]) -> bytes:
    """Build the bytes of a header, with its checksum filled in."""
    document: dict[str, object] = {"__metadata__": {**metadata, "header_checksum": NO_CHECKSUM}}
    document.update((tensor.name, tensor.description()) for tensor in tensors)
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % ALIGNMENT)
    return seal(struct.pack("<Q", len(text)) + text, NO_CHECKSUM)


def seal(raw: bytes, stated: str) -> bytes:
    """Replace the checksum `stated` in the bytes of a header with the right one."""
    blanked = raw.replace(_field(stated), _field(NO_CHECKSUM), 1)
    return blanked.replace(_field(NO_CHECKSUM), _field(checksum(blanked)), 1)


def header_bytes(prefix: Buffer) -> int:
    """Read the length of a header (= `data_start`) from the first 8 bytes of a file."""
    if len(prefix) < LENGTH_BYTES:
        raise ChunkCorrupt(f"{len(prefix)} bytes are too few for a header")
    (length,) = struct.unpack("<Q", bytes(prefix[:LENGTH_BYTES]))
    total = LENGTH_BYTES + int(length)
    if total > MAX_HEADER_BYTES or total % ALIGNMENT:
        raise ChunkCorrupt(f"a header of {total} bytes is not one of ours")
    return total


def parse_sealed(buffer: Buffer) -> SealedHeader:
    """Parse a header and verify its checksum; `buffer` may continue into the data."""
    total = header_bytes(buffer)
    if len(buffer) < total:
        raise ChunkCorrupt(f"header truncated: {len(buffer)} of {total} bytes")
    raw = bytes(buffer[:total])
    try:
        document = json.loads(raw[LENGTH_BYTES:])
    except (ValueError, RecursionError) as error:
        raise ChunkCorrupt(f"header is not JSON: {error}") from error
    metadata = document.pop("__metadata__", None) if isinstance(document, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ChunkCorrupt("header has no __metadata__ of strings")
    stated = metadata.get("header_checksum", "")
    if raw.count(_field(stated)) != 1 or seal(raw, stated) != raw:
        raise ChunkCorrupt("checksum of the header differs")
    return SealedHeader(raw, metadata, document)


def _field(value: str) -> bytes:
    """Return the checksum field in the JSON. Quotes in strings are escaped, so it occurs once."""
    return f'"header_checksum":"{value}"'.encode()
