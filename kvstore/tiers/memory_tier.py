"""Keeps chunks in this process's memory, bounded in bytes.

Eviction is GDSF (greedy dual size frequency): the entry with the lowest

    priority = clock + uses * tokens / bytes

goes first, among equals the least recently used. Tokens stand for the cost of computing the entry
again. The clock rises to the priority of each evicted entry, so entries that were popular long ago
age. Unlike with LRU, many new documents that are used once each evict one another, and not those
that are used often; and an int8 chunk, which saves the same prefill in half the bytes, stays longer
than a raw one.

Extra tensors are entries of their own, also without their chunk, because readers that fetch chunks
block by block from slower tiers need them here. They count as one block of tokens.

Entries are immutable and handed out by reference. A reader keeps an evicted chunk alive as long as
it holds it, so memory in use can exceed the bound by what readers hold.

Source:
    Cherkasova, "Improving WWW proxies performance with greedy-dual-size-frequency caching policy",
    1998.
"""

import heapq
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from kvstitch.kvstore.errors import ChunkCorrupt, TierFull
from kvstitch.kvstore.format.buffers import BufferPool, ByteRange, gather, total_bytes
from kvstitch.kvstore.format.chunk import EncodedChunk
from kvstitch.kvstore.format.chunk_header import ChunkHeader
from kvstitch.kvstore.format.chunk_identity import BLOCK_TOKENS
from kvstitch.kvstore.tiers.base import ChunkProgress, Tier, TierKind, TierUsage

# A chunk's key, and the name of its extra bytes; no name: the chunk itself.
_Id = tuple[str, str]


@dataclass
class _Entry:
    item: Any  # an EncodedChunk, or the Tensor of extra bytes
    tokens: int
    nbytes: int
    uses: int = 0
    # The heap may still hold older orders of this entry; only the one equal to this is valid.
    order: tuple[float, int] = (0.0, 0)


class MemoryTier(Tier):
    """A bounded dictionary of chunks.

    Args:
        capacity_bytes: strict bound on the total size of chunks and extra tensors.
        name: label in outcomes and metrics.
        on_change: called with a key and whether its chunk is held from now on, in the order of the
            changes. It is called under the tier's lock: it must be quick and call nothing here.
    """

    kind: TierKind = "memory"

    def __init__(
        self,
        capacity_bytes: int,
        *,
        name: str = "memory",
        on_change: Callable[[str, bool], None] | None = None,
    ) -> None:
        self.name = name
        self._on_change = on_change or (lambda key, held: None)
        self._capacity = capacity_bytes
        self._buffers = BufferPool()
        self._lock = threading.Lock()
        self._entries: dict[_Id, _Entry] = {}
        self._heap: list[tuple[tuple[float, int], _Id]] = []
        self._used = 0
        self._clock = 0.0
        self._sequence = 0
        self._evictions = 0

    def close(self) -> None:
        """Drop everything."""
        with self._lock:
            for id in list(self._entries):
                self._remove(id)
            self._heap.clear()
        self._buffers.clear()

    def put(self, key: str, chunk: EncodedChunk) -> None:
        with self._lock:
            if (key, "") not in self._entries:
                self._add((key, ""), _Entry(chunk, chunk.spec.tokens, chunk.nbytes))
                self._on_change(key, True)

    def read_header(self, key: str) -> ChunkHeader | None:
        with self._lock:
            entry = self._entries.get((key, ""))
            return entry.item.header if entry else None

    def read(self, key: str, on_progress: ChunkProgress | None = None) -> EncodedChunk | None:
        chunk: EncodedChunk | None = self._hand_out((key, ""))
        return chunk

    def read_ranges(
        self,
        key: str,
        header: ChunkHeader,
        ranges: Sequence[ByteRange],
        on_progress: ChunkProgress | None = None,
    ) -> Tensor | None:
        chunk = self.read(key)
        if chunk is None:
            return None
        if chunk.header != header:
            raise ChunkCorrupt("the chunk is not the one this header came from")
        data = self._buffers.allocate(total_bytes(ranges), pin=chunk.data.is_pinned())
        gather(
            chunk.data, ranges, data, partial(on_progress, header, data) if on_progress else None
        )
        return data

    def put_extra(self, key: str, name: str, raw: Tensor) -> bool:
        with self._lock:
            self._remove((key, name))
            self._add((key, name), _Entry(raw, BLOCK_TOKENS, raw.numel()))
        return True

    def read_extra(self, key: str, name: str) -> Tensor | None:
        raw: Tensor | None = self._hand_out((key, name))
        return raw

    def contains(self, keys: Collection[str]) -> set[str]:
        with self._lock:
            return {key for key in keys if (key, "") in self._entries}

    def delete(self, keys: Collection[str]) -> int:
        wanted = set(keys)
        with self._lock:
            removed = [id for id in self._entries if id[0] in wanted]
            for id in removed:
                self._remove(id)
        return sum(not name for _, name in removed)

    def keys(self) -> Iterable[str]:
        with self._lock:
            return [key for key, name in self._entries if not name]

    def usage(self) -> TierUsage:
        chunks = len(list(self.keys()))
        with self._lock:
            return TierUsage(chunks, self._used, self._capacity, self._evictions)

    def _hand_out(self, id: _Id) -> Any:
        with self._lock:
            entry = self._entries.get(id)
            if entry is None:
                return None
            self._use(id, entry)
            return entry.item

    def _use(self, id: _Id, entry: _Entry) -> None:
        entry.uses += 1
        self._sequence += 1
        priority = self._clock + entry.uses * entry.tokens / entry.nbytes
        entry.order = (priority, self._sequence)
        heapq.heappush(self._heap, (entry.order, id))
        if len(self._heap) > 64 + 4 * len(self._entries):
            self._heap = [item for item in self._heap if self._is_current(*item)]
            heapq.heapify(self._heap)

    def _is_current(self, order: tuple[float, int], id: _Id) -> bool:
        entry = self._entries.get(id)
        return entry is not None and entry.order == order

    def _add(self, id: _Id, entry: _Entry) -> None:
        if entry.nbytes > self._capacity:
            raise TierFull(f"{entry.nbytes} bytes do not fit {self._capacity}")
        while self._used + entry.nbytes > self._capacity:
            order, oldest = heapq.heappop(self._heap)
            if self._is_current(order, oldest):
                self._clock = order[0]
                self._remove(oldest)
                self._evictions += 1
        self._entries[id] = entry
        self._used += entry.nbytes
        self._use(id, entry)

    def _remove(self, id: _Id) -> None:
        entry = self._entries.pop(id, None)
        if entry is None:
            return
        self._used -= entry.nbytes
        key, name = id
        if not name:
            self._on_change(key, False)
