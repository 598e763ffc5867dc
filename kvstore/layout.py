"""Where the tensors of a chunk lie in its data section; follows from the spec alone.

    | layer 0                             | layer 1 ...
    | k.0 | v.0 | k.0.scale | v.0.scale   |

Knows no header, no checksum and no bytes.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch

from kvstore.codecs import codec
from kvstore.codecs.base import Part, Role
from kvstore.errors import ChunkSpecError
from kvstore.spec import ChunkSpec

ROLES: tuple[Role, Role] = ("k", "v")


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of the data section: bytes ``[start, end)`` counted from ``data_start``."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int
    checksum: str = ""


@lru_cache(maxsize=256)
def layout(spec: ChunkSpec) -> tuple[TensorEntry, ...]:
    """Where every tensor of a chunk of this spec lies; checksums empty.

    Raises:
        ChunkSpecError: unknown codec.
    """
    entries: list[TensorEntry] = []
    offset = 0
    for layer in range(spec.layers):
        for role, part in _layer_parts(spec):
            size = part.dtype.itemsize
            for length in part.shape:
                size *= length
            name = f"{role}.{layer}{part.suffix}"
            entries.append(TensorEntry(name, part.dtype, part.shape, offset, offset + size))
            offset += size
    return tuple(entries)


def layer_names(spec: ChunkSpec, layer: int) -> list[str]:
    """Names of one layer's tensors in file order.

    Raises:
        ChunkSpecError: no such layer.
    """
    if not 0 <= layer < spec.layers:
        raise ChunkSpecError(f"layer {layer} is outside a chunk of {spec.layers} layers")
    return [f"{role}.{layer}{part.suffix}" for role, part in _layer_parts(spec)]


def _layer_parts(spec: ChunkSpec) -> list[tuple[Role, Part]]:
    """Main tensors first, then scales: k and v are one size, so what follows them is aligned."""
    parts = [(role, codec(spec.codec).parts(role, spec)) for role in ROLES]
    most = max(len(of_role) for _, of_role in parts)
    return [(role, of[i]) for i in range(most) for role, of in parts if i < len(of)]
