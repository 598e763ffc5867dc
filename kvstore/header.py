"""The header of a chunk: a valid safetensors header that we write ourselves.

safetensors' own writer sorts tensors by dtype and name, which scatters a layer over the file.
Ours keeps one layer in one byte range, layers in order:

    | u64 n | JSON, padded with spaces | layer 0          | layer 1          | ...
    0       8                 data_start = 8 + n, a multiple of 64
                                       | k.0 | v.0 | k.0.scale | v.0.scale |

Everything but the checksums follows from the spec, so a parsed header must equal the layout of its
own spec. A checksum over all header bytes (itself blanked) covers the length, the JSON and the
padding. Knows no tier and holds no data.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kvstore.buffers import typed_view, view_bytes
from kvstore.checksum import DIGEST_HEX, Buffer, checksum, default_algorithm, matches
from kvstore.codecs import codec
from kvstore.errors import ChunkCorrupt, ChunkRefused, ChunkSpecError
from kvstore.layout import ROLES, TensorEntry, layer_names, layout
from kvstore.spec import ChunkSpec

FORMAT = "kvstitch-chunk"
VERSION = "1"
ALIGNMENT = 64
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 16 << 20

_SAFETENSORS_DTYPES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.int8: "I8",
    torch.uint8: "U8",
}


@dataclass(frozen=True)
class ChunkHeader:
    """A validated header.

    Attributes:
        raw: the header's bytes as stored, length prefix and padding included.
        spec: what the chunk is.
        tensors: name to entry, in file order.
        nbytes: bytes of the data section.
    """

    raw: bytes
    spec: ChunkSpec
    tensors: Mapping[str, TensorEntry]
    nbytes: int

    @property
    def data_start(self) -> int:
        """Offset of the data section in the file; a multiple of 64."""
        return len(self.raw)

    @property
    def file_bytes(self) -> int:
        """Bytes of the whole container."""
        return len(self.raw) + self.nbytes

    def layer_tensors(self, layer: int) -> tuple[TensorEntry, ...]:
        """Entries of one layer in file order.

        Raises:
            ChunkSpecError: no such layer.
        """
        names = layer_names(self.spec, layer)
        return tuple(self.tensors[name] for name in names)

    def layer_range(self, layer: int) -> tuple[int, int]:
        """Bytes ``[start, end)`` of one layer in the data section."""
        entries = self.layer_tensors(layer)
        return entries[0].start, entries[-1].end

    def rows_range(self, name: str, start: int, stop: int) -> tuple[int, int]:
        """Bytes ``[start, end)`` in the data section of token rows ``[start, stop)`` of a tensor.

        Only for tensors whose first dimension is tokens. Rows alone cannot be verified: checksums
        are per tensor.
        """
        entry = self.tensors[name]
        if not 0 <= start <= stop <= entry.shape[0]:
            raise ChunkSpecError(f"rows [{start}, {stop}) are outside {name} {entry.shape}")
        row = (entry.end - entry.start) // entry.shape[0]
        return entry.start + start * row, entry.start + stop * row

    def verify_layer(self, layer: int, raw: Tensor) -> None:
        """Check one layer's bytes (host uint8 ``[end - start]``) against its checksums.

        Raises:
            ChunkCorrupt: length or checksum differs.
        """
        entries = self.layer_tensors(layer)
        base, end = entries[0].start, entries[-1].end
        if raw.numel() != end - base:
            raise ChunkCorrupt(f"layer {layer} has {raw.numel()} bytes, not {end - base}")
        view = view_bytes(raw)
        for entry in entries:
            if not matches(entry.checksum, view[entry.start - base : entry.end - base]):
                raise ChunkCorrupt(f"checksum of {entry.name} differs")

    def decode_layer(self, layer: int, raw: Tensor) -> tuple[Tensor, Tensor]:
        """One layer's bytes (uint8, any device) into k and v ``[tokens, kv_heads, head_dim]``.

        Runs where ``raw`` is, so the wire to a device carries the encoded form.
        """
        entries = self.layer_tensors(layer)
        base = entries[0].start
        chunk_codec = codec(self.spec.codec)
        decoded = []
        for role in ROLES:
            stored = [
                typed_view(raw[entry.start - base : entry.end - base], entry.dtype, entry.shape)
                for entry in entries
                if entry.name.startswith(role)
            ]
            decoded.append(chunk_codec.decode(role, stored, self.spec))
        return decoded[0], decoded[1]


def build_header(spec: ChunkSpec, checksums: Mapping[str, str]) -> ChunkHeader:
    """The header of a chunk whose tensors have these checksums (name to text)."""
    entries = [replace(entry, checksum=checksums[entry.name]) for entry in layout(spec)]
    blank = _blank(default_algorithm())
    document: dict[str, object] = {"__metadata__": _metadata(spec, entries, blank)}
    for entry in entries:
        document[entry.name] = {
            "dtype": _SAFETENSORS_DTYPES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [entry.start, entry.end],
        }
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % ALIGNMENT)
    raw = seal(struct.pack("<Q", len(text)) + text, blank)
    return ChunkHeader(raw, spec, {entry.name: entry for entry in entries}, entries[-1].end)


def seal(raw: bytes, stated: str) -> bytes:
    """Header bytes whose checksum field says ``stated``, with the right checksum instead."""
    blank = _blank(default_algorithm())
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


def parse_header(buffer: Buffer) -> ChunkHeader:
    """Parse and check a header; ``buffer`` may run on into the data.

    Raises:
        ChunkCorrupt: truncated, not a chunk, or any header byte differs from what was written.
        ChunkRefused: a sound header of a format version or codec that is not known here.
    """
    total = header_bytes(buffer)
    if len(buffer) < total:
        raise ChunkCorrupt(f"header truncated: {len(buffer)} of {total} bytes")
    raw = bytes(buffer[:total])
    metadata, document = _read_json(raw)
    _check_header_checksum(raw, metadata)
    if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
        raise ChunkRefused(f"format {metadata.get('format')!r} version {metadata.get('version')!r}")
    try:
        spec = ChunkSpec(
            fingerprint=metadata["fingerprint"],
            codec=metadata["codec"],
            dtype=metadata["dtype"],
            layers=int(metadata["layers"]),
            kv_heads=int(metadata["kv_heads"]),
            head_dim=int(metadata["head_dim"]),
            tokens=int(metadata["tokens"]),
        )
        expected = layout(spec)
    except ChunkSpecError as error:
        raise ChunkRefused(str(error)) from error
    except (KeyError, ValueError) as error:
        raise ChunkCorrupt(f"metadata incomplete: {error}") from error
    entries: dict[str, TensorEntry] = {}
    for entry in expected:
        stated = document.get(entry.name)
        if stated != {
            "dtype": _SAFETENSORS_DTYPES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [entry.start, entry.end],
        }:
            raise ChunkCorrupt(f"tensor {entry.name} is not laid out as its spec says")
        text = metadata.get(f"checksum.{entry.name}", "")
        entries[entry.name] = replace(entry, checksum=text)
    return ChunkHeader(raw, spec, entries, expected[-1].end)


def _metadata(spec: ChunkSpec, entries: Iterable[TensorEntry], blank: str) -> dict[str, str]:
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": spec.fingerprint,
        "codec": spec.codec,
        "dtype": spec.dtype,
        "layers": str(spec.layers),
        "kv_heads": str(spec.kv_heads),
        "head_dim": str(spec.head_dim),
        "tokens": str(spec.tokens),
    }
    sums = {f"checksum.{entry.name}": entry.checksum for entry in entries}
    return facts | sums | {"header_checksum": blank}


def _blank(algorithm: str) -> str:
    """What stands in the field while the header is summed."""
    return f"{algorithm}:{'0' * DIGEST_HEX}"


def _field(value: str) -> bytes:
    """The checksum as it stands in the JSON; inside strings quotes are escaped, so it is unique."""
    return f'"header_checksum":"{value}"'.encode()


def _read_json(raw: bytes) -> tuple[dict[str, str], dict[str, object]]:
    try:
        document = json.loads(raw[LENGTH_BYTES:])
    except (ValueError, RecursionError) as error:
        raise ChunkCorrupt(f"header is not JSON: {error}") from error
    metadata = document.pop("__metadata__", None) if isinstance(document, dict) else None
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ChunkCorrupt("header has no __metadata__ of strings")
    return metadata, document


def _check_header_checksum(raw: bytes, metadata: Mapping[str, str]) -> None:
    stated = metadata.get("header_checksum", "")
    field, blank = _field(stated), _field(_blank(stated.partition(":")[0]))
    if raw.count(field) != 1 or not matches(stated, raw.replace(field, blank, 1)):
        raise ChunkCorrupt("checksum of the header differs")
