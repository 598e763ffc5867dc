"""Chunks in this process's memory, bounded in bytes.

Eviction is GDSF (greedy dual size frequency, Cherkasova 1998): the entry with the lowest

    priority = clock + uses * tokens / bytes

goes first, where tokens stand for the cost of recomputing it and the clock rises to the priority
of each evicted entry, so what was popular long ago ages. Chosen over LRU because a run of novel
documents (used once each) then flushes one another, not the documents everybody asks for; and an
int8 chunk, which saves the same prefill in half the bytes, outlives a raw one. Ties go to the
least recently used.

Entries are immutable and handed out by reference: a reader keeps an evicted chunk alive as long as
it holds it, so no pinning is needed, but memory in use can exceed the bound by what readers hold.
"""

import heapq
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from kvstore.chunk import EncodedChunk
from kvstore.errors import TierFull
from kvstore.header import ChunkHeader
from kvstore.tiers.base import TierKind, Usage


@dataclass
class _Entry:
    chunk: EncodedChunk
    uses: int
    # The heap may hold older orders of this entry; only the one equal to this is current.
    order: tuple[float, int]


class MemoryTier:
    """A bounded dictionary of chunks.

    Args:
        capacity_bytes: bound on the sum of the containers' sizes, held exactly.
        name: label in outcomes and metrics.
    """

    kind: TierKind = "memory"

    def __init__(self, capacity_bytes: int, *, name: str = "memory") -> None:
        self.name = name
        self._capacity = capacity_bytes
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._heap: list[tuple[tuple[float, int], str]] = []
        self._used = 0
        self._clock = 0.0
        self._sequence = 0
        self._evictions = 0

    def start(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Drop every chunk."""
        with self._lock:
            self._entries.clear()
            self._heap.clear()
            self._used = 0

    def put(self, key: str, chunk: EncodedChunk) -> None:
        with self._lock:
            if key in self._entries:
                return
            if chunk.nbytes > self._capacity:
                raise TierFull(f"{chunk.nbytes} bytes do not fit {self._capacity}")
            while self._used + chunk.nbytes > self._capacity:
                self._evict_one()
            entry = _Entry(chunk, 0, (0.0, 0))
            self._entries[key] = entry
            self._used += chunk.nbytes
            self._use(key, entry)

    def read_header(self, key: str) -> ChunkHeader | None:
        with self._lock:
            entry = self._entries.get(key)
            return entry.chunk.header if entry else None

    def read(self, key: str) -> EncodedChunk | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._use(key, entry)
            return entry.chunk

    def read_layers(
        self, key: str, header: ChunkHeader, layers: Sequence[int]
    ) -> dict[int, Tensor] | None:
        chunk = self.read(key)
        return None if chunk is None else {layer: chunk.layer_bytes(layer) for layer in layers}

    def contains(self, keys: Collection[str]) -> set[str]:
        with self._lock:
            return {key for key in keys if key in self._entries}

    def delete(self, keys: Collection[str]) -> int:
        with self._lock:
            return sum(self._remove(key) for key in set(keys))

    def keys(self) -> Iterable[str]:
        with self._lock:
            return list(self._entries)

    def usage(self) -> Usage:
        with self._lock:
            return Usage(len(self._entries), self._used, self._capacity, self._evictions)

    def _use(self, key: str, entry: _Entry) -> None:
        chunk = entry.chunk
        entry.uses += 1
        self._sequence += 1
        priority = self._clock + entry.uses * chunk.spec.tokens / chunk.nbytes
        entry.order = (priority, self._sequence)
        heapq.heappush(self._heap, (entry.order, key))
        if len(self._heap) > 64 + 4 * len(self._entries):
            self._heap = [(entry.order, key) for key, entry in self._entries.items()]
            heapq.heapify(self._heap)

    def _evict_one(self) -> None:
        while True:
            order, key = heapq.heappop(self._heap)
            entry = self._entries.get(key)
            if entry is not None and entry.order == order:
                break
        self._clock = order[0]
        self._remove(key)
        self._evictions += 1

    def _remove(self, key: str) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._used -= entry.chunk.nbytes
        return True
