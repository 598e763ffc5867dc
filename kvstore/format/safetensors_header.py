"""A safetensors header that we write ourselves and seal with a checksum of its own bytes.

    | u64 n | JSON, padded with spaces | data ...
    0       8                 data_start = 8 + n, a multiple of 64

safetensors' own writer sorts tensors by dtype and name; ours keeps the order it is given. The
checksum covers the length, the JSON and the padding, itself blanked; it stands in the metadata, so
that any safetensors reader can open the file. Knows no chunk and holds no data.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from kvstore.errors import ChunkCorrupt
from kvstore.format.checksum import DIGEST_HEX, Buffer, checksum, default_algorithm, matches

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
    """One tensor of the data section: bytes ``[start, end)`` counted from ``data_start``."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int

    def description(self) -> dict[str, object]:
        """What a safetensors header says of it."""
        return {
            "dtype": SAFETENSORS_DTYPES[self.dtype],
            "shape": list(self.shape),
            "data_offsets": [self.start, self.end],
        }


@dataclass(frozen=True)
class SealedHeader:
    """A header whose checksum is right.

    Attributes:
        raw: its bytes as stored, length prefix and padding included.
        metadata: texts by name.
        tensors: tensor name to what the header says of it; not checked.
    """

    raw: bytes
    metadata: Mapping[str, str]
    tensors: Mapping[str, object]


def build_sealed(metadata: Mapping[str, str], tensors: Iterable[StoredTensor]) -> bytes:
    """The bytes of a header."""
    blank = _blank(f"{default_algorithm()}_128")
    document: dict[str, object] = {"__metadata__": {**metadata, "header_checksum": blank}}
    document.update((tensor.name, tensor.description()) for tensor in tensors)
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % ALIGNMENT)
    return seal(struct.pack("<Q", len(text)) + text, blank)


def seal(raw: bytes, stated: str) -> bytes:
    """Header bytes whose checksum field says ``stated``, with the right checksum instead."""
    blank = _blank(f"{default_algorithm()}_128")
    blanked = raw.replace(_field(stated), _field(blank), 1)
    return blanked.replace(_field(blank), _field(checksum(blanked)), 1)


def header_bytes(prefix: Buffer) -> int:
    """Bytes of the header (= ``data_start``) from the first 8 bytes of a container.

    Raises:
        ChunkCorrupt: too short, or not a length that we write.
    """
    if len(prefix) < LENGTH_BYTES:
        raise ChunkCorrupt(f"{len(prefix)} bytes are too few for a header")
    (length,) = struct.unpack("<Q", bytes(prefix[:LENGTH_BYTES]))
    total = LENGTH_BYTES + int(length)
    if total > MAX_HEADER_BYTES or total % ALIGNMENT:
        raise ChunkCorrupt(f"a header of {total} bytes is not one of ours")
    return total


def parse_sealed(buffer: Buffer) -> SealedHeader:
    """Parse a header and check its checksum; ``buffer`` may run on into the data.

    Raises:
        ChunkCorrupt: truncated, not ours, or any header byte differs from what was written.
        ChunkRefused: summed by an algorithm that is not installed here.
    """
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
    field, blank = _field(stated), _field(_blank(stated.partition(":")[0]))
    if raw.count(field) != 1 or not matches(stated, raw.replace(field, blank, 1)):
        raise ChunkCorrupt("checksum of the header differs")
    return SealedHeader(raw, metadata, document)


def _blank(algorithm: str) -> str:
    """What stands in the field while the header is summed."""
    return f"{algorithm}:{'0' * DIGEST_HEX}"


def _field(value: str) -> bytes:
    """The checksum as it stands in the JSON; inside strings quotes are escaped, so it is unique."""
    return f'"header_checksum":"{value}"'.encode()
