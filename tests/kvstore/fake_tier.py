"""A tier for tests: a dictionary with faults on demand.

tier = FakeTier(kind="shared")
tier.fail("read", TierTimeout("slow"))     # every read from now on, until tier.heal()
tier.block("put")                          # puts wait until tier.release()
tier.damage(key, offset=100)               # flip a stored bit
tier.damage_extra(key, "sketch")
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from kvstitch.kvstore.errors import ChunkCorrupt
from kvstitch.kvstore.format.buffers import ByteRange, gather, total_bytes
from kvstitch.kvstore.format.chunk import EncodedChunk
from kvstitch.kvstore.format.chunk_header import ChunkHeader
from kvstitch.kvstore.store import TieredStore
from kvstitch.kvstore.tiers.base import ChunkProgress, TierKind, TierUsage


class FakeTier:
    """An unbounded tier in memory with injected faults.

    Attributes:
        calls: number of calls by operation name, failed calls included.
    """

    def __init__(self, name: str = "fake", *, kind: TierKind = "shared") -> None:
        self.name = name
        self.kind: TierKind = kind
        self.usage_is_asked = kind == "shared"
        self.calls: Counter[str] = Counter()
        self._blocked: dict[str, threading.Event] = {}
        self._faults: dict[str, Exception] = {}
        self._lock = threading.Lock()
        self._chunks: dict[str, EncodedChunk] = {}
        self._extras: dict[str, dict[str, Tensor]] = {}

    def fail(self, operation: str, error: Exception) -> None:
        """Raise `error` from that operation until `heal`; `"*"` means all of them."""
        self._faults[operation] = error

    def block(self, operation: str) -> None:
        """Make that operation wait for `release`, like a slow tier."""
        self._blocked[operation] = threading.Event()

    def release(self) -> None:
        """Let all waiting and later operations continue."""
        blocked, self._blocked = self._blocked, {}
        for event in blocked.values():
            event.set()

    def release_when(self, holds: Callable[[], bool]) -> None:
        """`release` on a thread as soon as that holds, however slow the machine is."""

        def wait() -> None:
            while not holds():
                time.sleep(0.001)
            self.release()

        threading.Thread(target=wait, daemon=True).start()

    def heal(self) -> None:
        self._faults.clear()

    def damage(self, key: str, offset: int = 0) -> None:
        """Flip one bit of a stored chunk's data; readers of the old object see no change."""
        chunk = self._chunks[key]
        data = chunk.data.clone()
        data[offset] ^= 1
        self._chunks[key] = EncodedChunk(chunk.header, data)

    def damage_extra(self, key: str, name: str, offset: int = -1) -> None:
        """Flip one bit of stored extra bytes."""
        raw = self._extras[key][name].clone()
        raw[offset] ^= 1
        self._extras[key][name] = raw

    def plant(self, key: str, chunk: EncodedChunk) -> None:
        """Store a chunk directly, named as the store would, without counting a call."""
        self._chunks[key] = chunk.under(key)

    def start(self) -> None:
        self._enter("start")

    def close(self) -> None:
        """Keep the chunks, like a disk."""

    def put(self, key: str, chunk: EncodedChunk) -> None:
        self._enter("put")
        self._chunks[key] = chunk

    def read_header(self, key: str) -> ChunkHeader | None:
        self._enter("read_header")
        chunk = self._chunks.get(key)
        return chunk.header if chunk else None

    def read(self, key: str, on_progress: ChunkProgress | None = None) -> EncodedChunk | None:
        chunk = self._chunks.get(key)  # before any wait, like a slow transfer of a found chunk
        self._enter("read")
        return chunk

    def read_ranges(
        self,
        key: str,
        header: ChunkHeader,
        ranges: Sequence[ByteRange],
        on_progress: ChunkProgress | None = None,
    ) -> Tensor | None:
        chunk = self._chunks.get(key)
        self._enter("read_ranges")
        if chunk is None:
            return None
        if chunk.header.nbytes != header.nbytes:
            raise ChunkCorrupt("the chunk is not the one this header came from")
        data = torch.empty(total_bytes(ranges), dtype=torch.uint8)
        gather(chunk.data, ranges, data)
        return data

    def put_extra(self, key: str, name: str, raw: Tensor) -> bool:
        self._enter("put_extra")
        if key not in self._chunks:
            return False
        self._extras.setdefault(key, {})[name] = raw
        return True

    def read_extra(self, key: str, name: str) -> Tensor | None:
        raw = self._extras.get(key, {}).get(name)
        self._enter("read_extra")
        return raw

    def contains(self, keys: Collection[str]) -> set[str]:
        self._enter("contains")
        return {key for key in keys if key in self._chunks}

    def delete(self, keys: Collection[str]) -> int:
        self._enter("delete")
        for key in keys:
            self._extras.pop(key, None)
        return sum(self._chunks.pop(key, None) is not None for key in set(keys))

    def keys(self) -> Iterable[str]:
        self._enter("keys")
        return list(self._chunks)

    def usage(self) -> TierUsage:
        self._enter("usage")
        used = sum(chunk.nbytes for chunk in list(self._chunks.values()))
        used += sum(raw.numel() for of in list(self._extras.values()) for raw in of.values())
        return TierUsage(len(self._chunks), used, None, 0)

    def scan_counts(self) -> Mapping[str, int]:
        return {}

    def _enter(self, operation: str) -> None:
        with self._lock:
            self.calls[operation] += 1
        blocked = self._blocked.get(operation)
        if blocked is not None:
            blocked.wait(300)  # bounded, so that a failing test ends
        fault = self._faults.get(operation) or self._faults.get("*")
        if fault is not None:
            raise fault


def let_cool_down(store: TieredStore) -> None:
    """The cool-down of every open breaker is over at once."""
    for tier in store._tiers:
        breaker = tier.calls._breaker
        if breaker._opened_at is not None:
            breaker._opened_at -= breaker._settings.cooldown_s
