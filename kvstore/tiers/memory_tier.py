"""Keeps chunks in this process's memory, bounded in bytes.

Eviction is GDSF (greedy dual size frequency). The entry with the lowest

    priority = clock + uses * tokens / bytes

is evicted first. Tokens stand for the cost of computing the entry again. The clock rises to the
priority of each evicted entry, so entries that were popular long ago age. The reasons to prefer it
to LRU: many new documents that are used once each evict one another, and not the documents that
are used often; and an int8 chunk, which saves the same prefill in half the bytes, stays longer than
a raw one. Among equal priorities the least recently used entry goes first.

Extra tensors are entries of their own, also without their chunk, because readers that fetch chunks
block by block from slower tiers need them here. They count as one block of tokens, so a small
sketch stays longer than a chunk that is used as often.

Entries are immutable and handed out by reference. A reader keeps an evicted chunk alive as long as
it holds it, so no pinning is needed; but memory in use can exceed the bound by what readers hold.

Source:
    Cherkasova, "Improving WWW proxies performance with greedy-dual-size-frequency caching policy",
    1998.
"""

import heapq
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from torch import Tensor

from kvstore.errors import ChunkCorrupt, TierFull
from kvstore.format.buffers import BufferPool, ByteRange, gather, total_bytes
from kvstore.format.chunk import EncodedChunk
from kvstore.format.chunk_header import ChunkHeader
from kvstore.format.chunk_identity import BLOCK_TOKENS
from kvstore.tiers.base import ChunkProgress, Tier, TierKind, TierUsage

T = TypeVar("T")

# A chunk's key, or a chunk's key and the name of its extra bytes.
_Id = tuple[str] | tuple[str, str]


@dataclass
class _Entry(Generic[T]):
    item: T
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
        self._chunks: dict[str, _Entry[EncodedChunk]] = {}
        self._extras: dict[tuple[str, str], _Entry[Tensor]] = {}
        self._heap: list[tuple[tuple[float, int], _Id]] = []
        self._used = 0
        self._clock = 0.0
        self._sequence = 0
        self._evictions = 0

    def close(self) -> None:
        """Drop everything."""
        with self._lock:
            for key in self._chunks:
                self._on_change(key, False)
            self._chunks.clear()
            self._extras.clear()
            self._heap.clear()
            self._used = 0
        self._buffers.clear()

    def put(self, key: str, chunk: EncodedChunk) -> None:
        with self._lock:
            if key in self._chunks:
                return
            self._make_room(chunk.nbytes)
            entry = self._chunks[key] = _Entry(chunk, chunk.spec.tokens, chunk.nbytes)
            self._used += entry.nbytes
            self._use((key,), entry)
            self._on_change(key, True)

    def read_header(self, key: str) -> ChunkHeader | None:
        with self._lock:
            entry = self._chunks.get(key)
            return entry.item.header if entry else None

    def read(self, key: str, on_progress: ChunkProgress | None = None) -> EncodedChunk | None:
        with self._lock:
            return self._hand_out((key,), self._chunks.get(key))

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
            self._make_room(raw.numel())
            entry = self._extras[key, name] = _Entry(raw, BLOCK_TOKENS, raw.numel())
            self._used += entry.nbytes
            self._use((key, name), entry)
        return True

    def read_extra(self, key: str, name: str) -> Tensor | None:
        with self._lock:
            return self._hand_out((key, name), self._extras.get((key, name)))

    def contains(self, keys: Collection[str]) -> set[str]:
        with self._lock:
            return {key for key in keys if key in self._chunks}

    def delete(self, keys: Collection[str]) -> int:
        with self._lock:
            wanted = set(keys)
            for id in [id for id in self._extras if id[0] in wanted]:
                self._remove(id)
            return sum(self._remove((key,)) for key in wanted)

    def keys(self) -> Iterable[str]:
        with self._lock:
            return list(self._chunks)

    def usage(self) -> TierUsage:
        with self._lock:
            return TierUsage(len(self._chunks), self._used, self._capacity, self._evictions)

    def _find(self, id: _Id) -> _Entry[EncodedChunk] | _Entry[Tensor] | None:
        return self._chunks.get(id[0]) if len(id) == 1 else self._extras.get(id)

    def _hand_out(self, id: _Id, entry: _Entry[T] | None) -> T | None:
        if entry is None:
            return None
        self._use(id, entry)
        return entry.item

    def _use(self, id: _Id, entry: _Entry[T]) -> None:
        entry.uses += 1
        self._sequence += 1
        priority = self._clock + entry.uses * entry.tokens / entry.nbytes
        entry.order = (priority, self._sequence)
        heapq.heappush(self._heap, (entry.order, id))
        if len(self._heap) > 64 + 4 * (len(self._chunks) + len(self._extras)):
            self._heap = [item for item in self._heap if self._is_current(*item)]
            heapq.heapify(self._heap)

    def _is_current(self, order: tuple[float, int], id: _Id) -> bool:
        entry = self._find(id)
        return entry is not None and entry.order == order

    def _make_room(self, nbytes: int) -> None:
        if nbytes > self._capacity:
            raise TierFull(f"{nbytes} bytes do not fit {self._capacity}")
        while self._used + nbytes > self._capacity:
            order, id = heapq.heappop(self._heap)
            if self._is_current(order, id):
                self._clock = order[0]
                self._remove(id)
                self._evictions += 1

    def _remove(self, id: _Id) -> bool:
        entry = self._find(id)
        if entry is None:
            return False
        self._used -= entry.nbytes
        if len(id) == 1:
            del self._chunks[id[0]]
            self._on_change(id[0], False)
        else:
            del self._extras[id]
        return True
