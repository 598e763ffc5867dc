"""Where the tensors of a chunk lie in its data section; follows from the spec alone.

    | layer 0                             | layer 1 ...
    | k.0 | v.0 | k.0.scale | v.0.scale   |
    | block 0 | block 1 | ... |             each tensor's rows run along the tokens

So a layer is one byte range, and a block of 64 tokens is one byte range of each of its tensors.
Knows no header, no checksum and no bytes.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from kvstore.codecs import codec
from kvstore.codecs.base import Part, Role
from kvstore.container import StoredTensor
from kvstore.errors import ChunkSpecError
from kvstore.spec import BLOCK_TOKENS, ChunkSpec

ROLES: tuple[Role, Role] = ("k", "v")


@dataclass(frozen=True)
class TensorEntry(StoredTensor):
    """A tensor of a chunk; ``tokens_per_row`` tokens share a row of its first dimension."""

    tokens_per_row: int = 1

    def blocks_range(self, first: int, last: int) -> tuple[int, int]:
        """Bytes ``[start, end)`` of the neighbouring blocks ``first`` to ``last`` (included)."""
        row_bytes = (self.end - self.start) // self.shape[0]
        block_bytes = row_bytes * (BLOCK_TOKENS // self.tokens_per_row)
        end = self.start + (last + 1) * block_bytes
        return self.start + first * block_bytes, min(end, self.end)


@lru_cache(maxsize=256)
def layout(spec: ChunkSpec) -> tuple[TensorEntry, ...]:
    """Where every tensor of a chunk of this spec lies.

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
            end = offset + size
            entries.append(
                TensorEntry(name, part.dtype, part.shape, offset, end, part.tokens_per_row)
            )
            offset = end
    return tuple(entries)


def layer_layout(spec: ChunkSpec, tokens: int | None = None) -> tuple[TensorEntry, ...]:
    """One layer alone, starting at byte 0; with ``tokens`` a layer of that many tokens."""
    return layout(replace(spec, layers=1, tokens=spec.tokens if tokens is None else tokens))


def layer_entries(spec: ChunkSpec, layer: int) -> tuple[TensorEntry, ...]:
    """One layer's tensors in file order.

    Raises:
        ChunkSpecError: no such layer.
    """
    if not 0 <= layer < spec.layers:
        raise ChunkSpecError(f"layer {layer} is outside a chunk of {spec.layers} layers")
    entries = layout(spec)
    count = len(entries) // spec.layers
    return entries[layer * count : (layer + 1) * count]


def _layer_parts(spec: ChunkSpec) -> list[tuple[Role, Part]]:
    """Main tensors first, then scales: k and v are one size, so what follows them is aligned."""
    parts = [(role, codec(spec.codec).parts(role, spec)) for role in ROLES]
    most = max(len(of_role) for _, of_role in parts)
    return [(role, of[i]) for i in range(most) for role, of in parts if i < len(of)]
