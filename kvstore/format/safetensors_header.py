"""Writes and reads a safetensors header that is sealed with a checksum of its own bytes.

    | u64 n | JSON, padded with spaces | data ...
    0       8                 data_start = 8 + n, a multiple of 64

The writer of the safetensors package sorts tensors by dtype and name; this one keeps the given
order. The checksum covers the length, the JSON and the padding, with its own field set to zeros. It
is stored in the metadata, so any safetensors reader can open the file.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from kvstore.errors import ChunkCorrupt
from kvstore.format.checksum import NO_CHECKSUM, Buffer, checksum

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
