"""The identity of a chunk: its model's fingerprint, its codec and its shape."""

from dataclasses import dataclass

import torch

from kvstore.errors import ChunkSpecError

DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
# With a bound, a tier can name every value that a chunk may have without reading the chunk.
MAX_LAYERS = 512
# The unit of checksums and of partial reads. Part of the format.
BLOCK_TOKENS = 64


@dataclass(frozen=True)
class ChunkSpec:
    """What a chunk holds; k and v of each layer are `[tokens, kv_heads, head_dim]`.

    Attributes:
        fingerprint: the model that the cache belongs to. Another fingerprint is refused on read.
        codec: name of a file in `kvstore/format/codecs`.
        dtype: dtype of the tensors before encoding: `"bfloat16"`, `"float16"` or `"float32"`.
        layers: number of layers, at most 512.
        kv_heads: number of key/value heads.
        head_dim: channels per head.
        tokens: number of tokens.

    Raises:
        ChunkSpecError: unknown dtype, or a size out of range.
    """

    fingerprint: str
    codec: str
    dtype: str
    layers: int
    kv_heads: int
    head_dim: int
    tokens: int

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ChunkSpecError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        for name in ("layers", "kv_heads", "head_dim", "tokens"):
            if getattr(self, name) < 1:
                raise ChunkSpecError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.layers > MAX_LAYERS:
            raise ChunkSpecError(f"layers must be at most {MAX_LAYERS}, got {self.layers}")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the decoded tensors."""
        return DTYPES[self.dtype]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one layer's k (and of its v): `[tokens, kv_heads, head_dim]`."""
        return (self.tokens, self.kv_heads, self.head_dim)

    @property
    def blocks(self) -> int:
        """Number of blocks of 64 tokens; the last may hold fewer."""
        return -(-self.tokens // BLOCK_TOKENS)

    def block_span(self, block: int) -> tuple[int, int]:
        """Tokens `[start, stop)` of a block."""
        start = block * BLOCK_TOKENS
        return start, min(start + BLOCK_TOKENS, self.tokens)
