"""Names chunks alike in both processes, without the model or the secrets that chunk keys need.

A gateway that routes to several workers counts with these names. They live in memory only; on disk
and in Redis a chunk has its key.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from service.records import ChunkTokens

ID_BYTES = 16


class ChunkIds:
    """Names the chunks of one request.

    Args:
        system: token ids of S.
        prefix_mode: what the chunks are computed behind.
        tenant: whose they are.
        lora: the LoRA adapter that they are computed with; empty: the base model.
    """

    def __init__(
        self, system: Sequence[int], prefix_mode: str, tenant: str, lora: str = ""
    ) -> None:
        self._start = blake2b(digest_size=ID_BYTES)
        self._start.update(repr((tenant, prefix_mode, lora)).encode())
        self._start.update(_bytes(system))

    def of(self, chunk: ChunkTokens) -> bytes:
        """The chunk's name: 16 bytes that nothing else has."""
        name = self._start.copy()
        for ids in (*chunk.behind, chunk.ids):
            name.update(_bytes(ids))
        return name.digest()


def _bytes(ids: Sequence[int]) -> bytes:
    """The ids and their number, so that a border between two lists counts."""
    return array("q", [len(ids), *ids]).tobytes()
