"""The stored form of extra tensors beside a chunk, such as a sketch of it.

    metadata: format, key of the chunk, name, version of the contents, checksum of the data section

They are a small safetensors file with its own name and version. They can be added to a chunk long
after it was written, and are read without its k and v. Encrypted, the whole file is one tensor of
bytes in another, with the chunk's key and the name authenticated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from kvstitch.encryption.aead import open_sealed, seal
from kvstitch.encryption.aead import place as place_of
from kvstitch.encryption.keyring import DataKey, EncryptionError, Keyring, SealBroken
from kvstitch.kvstore.errors import ChunkCorrupt, ChunkLocked, ChunkRefused, ChunkSpecError
from kvstitch.kvstore.format.buffers import allocate, typed_view, view_bytes
from kvstitch.kvstore.format.chunk_identity import require_extra_name
from kvstitch.kvstore.format.safetensors_header import (
    SAFETENSORS_DTYPES,
    Buffer,
    StoredTensor,
    build_sealed,
    checksum,
    parse_sealed,
)

FORMAT = "kvstitch-extra"
FORMAT_VERSION = "2"  # 1 had no key
SEALED_FORMAT = "kvstitch-sealed-extra"

_DTYPES = {text: dtype for dtype, text in SAFETENSORS_DTYPES.items()}


@dataclass(frozen=True, eq=False)
class EncodedExtra:
    """Immutable extra tensors: views of `raw`, the whole file (host uint8). `version` is that of
    the code that computes them; the owner's key seals them in tiers that are not memory."""

    name: str
    version: int
    raw: Tensor
    tensors: Mapping[str, Tensor]
    owner: str = ""

    @property
    def nbytes(self) -> int:
        return self.raw.numel()


def encode_extra(
    name: str, version: int, tensors: Mapping[str, Tensor], *, key: str, owner: str = ""
) -> EncodedExtra:
    """Encode tensors on any device, of any shape and memory layout, for the chunk of that key."""
    require_extra_name(name)
    for own, tensor in tensors.items():
        if tensor.dtype not in SAFETENSORS_DTYPES:
            raise ChunkSpecError(f"{name} tensor {own!r} has dtype {tensor.dtype}")
    places: list[StoredTensor] = []
    offset = 0
    # Tensors with the largest elements come first, so that all are aligned.
    for own in sorted(tensors, key=lambda own: (-tensors[own].dtype.itemsize, own)):
        tensor = tensors[own]
        end = offset + tensor.numel() * tensor.dtype.itemsize
        places.append(StoredTensor(own, tensor.dtype, tuple(tensor.shape), offset, end))
        offset = end
    data = allocate(offset)
    for place in places:
        source = tensors[place.name].detach().contiguous().view(-1).view(torch.uint8)
        data[place.start : place.end].copy_(source)
    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "key": key,
        "name": name,
        "version": str(version),
        "checksum": checksum(view_bytes(data)),
    }
    header = torch.frombuffer(bytearray(build_sealed(metadata, places)), dtype=torch.uint8)
    raw = torch.cat([header, data])
    return EncodedExtra(name, version, raw, _views(raw, header.numel(), places), owner)


def parse_extra(raw: Tensor, name: str, version: int, *, key: str) -> EncodedExtra:
    """Verify the bytes of extra tensors (host uint8); the result's tensors are views of them.
    Raises ChunkCorrupt: a byte differs from what was written; ChunkRefused: intact, but of another
    chunk, name or version."""
    buffer = view_bytes(raw)
    sealed = parse_sealed(buffer)
    wanted = {"format": FORMAT, "format_version": FORMAT_VERSION, "name": name}
    stated = {field: sealed.metadata.get(field) for field in wanted}
    if stated != wanted or sealed.metadata.get("version") != str(version):
        found = f"{stated['name']!r} version {sealed.metadata.get('version')!r}"
        raise ChunkRefused(f"extra is {found}, not {name!r} version {version}")
    if sealed.metadata.get("key") != key:
        raise ChunkRefused(f"extra {name!r} belongs to another chunk")
    start = len(sealed.raw)
    if sealed.metadata.get("checksum") != checksum(buffer[start:]):
        raise ChunkCorrupt(f"checksum of extra {name!r} differs")
    places = [_place(own, described) for own, described in sealed.tensors.items()]
    return EncodedExtra(name, version, raw, _views(raw, start, places))


def extra_file_bytes(header: Buffer) -> int:
    """Return the bytes of the whole file of extra tensors, as its header states them."""
    sealed = parse_sealed(header)
    ends = [_place(own, described).end for own, described in sealed.tensors.items()]
    return len(sealed.raw) + max(ends, default=0)


def seal_extra(raw: Tensor, key: DataKey, *, chunk: str, name: str) -> Tensor:
    """Return the bytes (host uint8) that tiers keep in place of those of extra tensors."""
    sealed = seal(key, bytes(view_bytes(raw)), place_of("extra", chunk, name))
    whole = StoredTensor("sealed", torch.uint8, (len(sealed),), 0, len(sealed))
    header = build_sealed({"format": SEALED_FORMAT, "key": chunk, "name": name}, [whole])
    return torch.frombuffer(bytearray(header + sealed), dtype=torch.uint8)


def opened_extra(raw: Tensor, keys: Keyring | None, *, chunk: str, name: str) -> Tensor:
    """Return the bytes of extra tensors; those that are not sealed are returned as they are."""
    buffer = view_bytes(raw)
    header = parse_sealed(buffer)
    if header.metadata.get("format") != SEALED_FORMAT:
        return raw
    if keys is None:
        raise ChunkLocked("this store has no keys")
    try:
        plain = open_sealed(keys, bytes(buffer[len(header.raw) :]), place_of("extra", chunk, name))
    except SealBroken as error:
        raise ChunkCorrupt(f"extra {name!r}: {error}") from error
    except EncryptionError as error:
        raise ChunkLocked(str(error)) from error
    return torch.frombuffer(bytearray(plain), dtype=torch.uint8)


def _place(name: str, stated: object) -> StoredTensor:
    """Check what the header says about one tensor; its checksum is right, so only a bug fails."""
    match stated:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]}:
            known = _DTYPES.get(dtype)
            if known is not None and prod(shape) * known.itemsize == end - start:
                return StoredTensor(name, known, tuple(shape), start, end)
    raise ChunkCorrupt(f"extra tensor {name!r} is not described as we do")


def _views(raw: Tensor, base: int, places: list[StoredTensor]) -> dict[str, Tensor]:
    return {
        place.name: typed_view(raw[base + place.start : base + place.end], place.dtype, place.shape)
        for place in places
    }
