"""Bytes of stored chunks, and how many reads go to the most read of them.

Bytes are exact, from the store's layout and header. Reads of the tiers assume that the
chunk of rank i is read in proportion to 1 / i (Zipf with exponent 1), and that every tier holds the
most read chunks that are not in the tiers above, which is the best any eviction policy can do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvstitch.kvstore import ChunkSpec, chunk_file_bytes

CODECS = ("raw", "k8v8", "k8v4", "int4")
TOKENS = 512
KIB, MIB, GIB, TIB = (1024**n for n in (1, 2, 3, 4))
VECTOR_BYTES = 384 * 4  # MiniLM, float32
TEXT_BYTES = 4 * TOKENS  # English, in SQLite beside the index


@dataclass(frozen=True)
class Model:
    """A model; `prefill_s` is assumed: seconds per token of full prefill, to be measured."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    prefill_s: float

    def chunk_bytes(self, codec: str, tokens: int = TOKENS) -> int:
        """Bytes of a stored chunk, with header and checksums."""
        spec = ChunkSpec("0" * 64, codec, "bfloat16", self.layers, self.kv_heads, self.head_dim,
                         tokens)  # fmt: skip
        return chunk_file_bytes(spec)


SMALL = Model("Qwen2.5-0.5B", 24, 2, 64, 4e-6)
MIDDLE = Model("Qwen2.5-7B", 28, 4, 128, 35e-6)
LLAMA = Model("Llama-3-8B, Mistral-7B", 32, 8, 128, 37e-6)
MODELS = (SMALL, Model("Qwen2.5-3B", 36, 2, 128, 15e-6), MIDDLE, LLAMA)


def share_of_reads(most_read: float, chunks: int) -> float:
    """Share of all reads that go to the `most_read` chunks: H(most_read) / H(chunks)."""
    return min(1.0, _harmonic(min(most_read, chunks)) / _harmonic(chunks))


def _harmonic(n: float) -> float:
    return math.log(n) + 0.5772156649 + 1 / (2 * n) if n >= 1 else 0.0
