"""What the KV of a token of a document takes, with all its copies: as measured, or as expected."""

from __future__ import annotations

from service.messages.replies import ModelInfo, Precomputed

# Bits of a number, with the scales that stand beside a group of numbers.
_BITS = {"int8": 8.5, "int4": 4.5, "int2": 2.5}
_RAW_BITS = {"float32": 32}
MEASURED_TOKENS = 1000
"""From which on what was measured is believed."""


class StoredSize:
    """Counts what is stored."""

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._bytes = 0.0
        self._tokens = 0.0

    def add(self, reply: Precomputed, tokens: float) -> None:
        """Count a copy of a chunk, and its share of the chunk's tokens."""
        if reply.status == "stored":
            self._bytes += reply.bytes
            self._tokens += tokens

    def bytes_per_token(self, model: ModelInfo) -> float:
        """Return bytes of a token of a document."""
        if self._tokens >= MEASURED_TOKENS:
            return self._bytes / self._tokens
        raw = _RAW_BITS.get(model.dtype, 16)
        return model.kv_bytes_per_token * _BITS.get(model.codec, raw) / raw * self._copies
