"""Extra tensors that are encrypted: their whole file as one tensor of bytes in another.

The key of the chunk and the name are authenticated, so a file does not open in another's place.
"""

import torch
from torch import Tensor

from encryption.errors import EncryptionError, SealBroken
from encryption.keyring import DataKey, Keyring
from encryption.values import open_sealed, place, seal
from kvstore.errors import ChunkCorrupt, ChunkLocked
from kvstore.format.buffers import view_bytes
from kvstore.format.safetensors_header import StoredTensor, build_sealed, parse_sealed

FORMAT = "kvstitch-sealed-extra"


def seal_extra(raw: Tensor, key: DataKey, *, chunk: str, name: str) -> Tensor:
    """Return the bytes (host uint8) that tiers keep in place of those of extra tensors."""
    sealed = seal(key, bytes(view_bytes(raw)), place("extra", chunk, name))
    whole = StoredTensor("sealed", torch.uint8, (len(sealed),), 0, len(sealed))
    header = build_sealed({"format": FORMAT, "key": chunk, "name": name}, [whole])
    return torch.frombuffer(bytearray(header + sealed), dtype=torch.uint8)


def opened_extra(raw: Tensor, keys: Keyring | None, *, chunk: str, name: str) -> Tensor:
    """Return the bytes of extra tensors; those that are not sealed are returned as they are.

    Raises:
        ChunkLocked: their key is not here.
        ChunkCorrupt: a byte differs, or they are another chunk's.
    """
    buffer = view_bytes(raw)
    header = parse_sealed(buffer)
    if header.metadata.get("format") != FORMAT:
        return raw
    if keys is None:
        raise ChunkLocked("this store has no keys")
    try:
        plain = open_sealed(keys, bytes(buffer[len(header.raw) :]), place("extra", chunk, name))
    except SealBroken as error:
        raise ChunkCorrupt(f"extra {name!r}: {error}") from error
    except EncryptionError as error:
        raise ChunkLocked(str(error)) from error
    return torch.frombuffer(bytearray(plain), dtype=torch.uint8)
