"""A tier whose faults never fail a request.

It verifies what is read, remembers headers, and retries failed deletes until they succeed. A broken
tier or bad bytes become a problem in the result.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from kvstitch.encryption.keyring import Keyring
from kvstitch.kvstore.format.chunk import (
    BlockSelection,
    EncodedBlocks,
    EncodedChunk,
    selection_ranges,
)
from kvstitch.kvstore.format.chunk_header import ChunkHeader
from kvstitch.kvstore.format.chunk_identity import ChunkSpec
from kvstitch.kvstore.format.extra_tensors import (
    EncodedExtra,
    opened_extra,
    parse_extra,
    seal_extra,
)
from kvstitch.kvstore.format.sealed_chunk import seal_chunk
from kvstitch.kvstore.format.verifier import Verifier, require_chunk
from kvstitch.kvstore.outcomes import TierStats
from kvstitch.kvstore.tier_caller import BreakerSettings, CallResult, TierCaller
from kvstitch.kvstore.tiers.base import Tier, TierUsage

T = TypeVar("T", EncodedChunk, EncodedExtra)

_HEADERS_KEPT = 256
_RETRIED_TOGETHER = 16  # failed deletes


@dataclass(frozen=True)
class BlocksRead:
    """Blocks of one tier: the intact ones, (layer, block) of the bad ones, and bytes moved."""

    blocks: EncodedBlocks
    bad: tuple[tuple[int, int], ...]
    nbytes: int


class FaultTolerantTier:
    """One tier whose calls never raise for a fault of the tier or of its stored bytes."""

    def __init__(self, tier: Tier, breaker: BreakerSettings, keys: Keyring | None = None) -> None:
        self._tier = tier
        self._keys = keys if tier.kind != "memory" else None
        self.name = tier.name
        self.kind = tier.kind
        self.calls = TierCaller(tier.name, breaker)
        self._lock = threading.Lock()
        # Deletes that failed. Until they succeed, the tier counts as not holding these keys.
        self._pending_deletes: set[str] = set()
        # Sealed under a key that is not here, when they were last read. They stay, because others
        # may have the key, but count as not held: so they are written again, under one that is.
        self._locked: set[str] = set()
        # Without a remembered header, reading a few blocks would take a second round trip and
        # move as many bytes again as several blocks.
        self._headers: OrderedDict[str, ChunkHeader] = OrderedDict()

    def start(self) -> None:
        """Start the wrapped tier; unlike the other methods this raises its errors."""
        self._tier.start()
        for outcome, times in self._tier.scan_counts().items():
            self.calls.count("scan", outcome, times=times)

    def close(self) -> None:
        self._tier.close()

    def read(self, key: str, expect: ChunkSpec | None, owner: str = "") -> CallResult[EncodedChunk]:
        """Read, verify and open the whole chunk; a bad copy is deleted."""

        def work() -> EncodedChunk | None:
            if self.kind == "memory":
                chunk = self._tier.read(key)
                if chunk is not None:
                    require_chunk(chunk.header, key, expect)
                return chunk
            verifier = Verifier(key, expect, self._keys)
            chunk = self._tier.read(key, verifier)
            return None if chunk is None else verifier.chunk(chunk, owner)

        result = self._found("read", key, work)
        self._note(key, result.problem)
        return result

    def read_blocks(
        self, key: str, selection: BlockSelection, expect: ChunkSpec | None
    ) -> CallResult[BlocksRead]:
        """Read some blocks and verify each; a copy with a bad block is deleted."""
        if self._delete_is_pending(key):
            return self.calls.count_found("read_blocks", CallResult(None, None), 0)
        moved = 0

        def work(header: ChunkHeader | None) -> BlocksRead | None:
            nonlocal moved
            if header is None:
                header = self._tier.read_header(key)
                if header is None:
                    return None
                moved += header.data_start if self.kind != "memory" else 0
            verifier = Verifier(key, expect, self._keys, selection)
            verifier.begin(header)
            ranges = selection_ranges(selection, header.spec)
            data = self._tier.read_ranges(key, header, ranges, verifier)
            if data is None:
                return None
            moved += data.numel()
            blocks, bad = verifier.blocks(header, data)
            self._remember(key, header)
            return BlocksRead(blocks, tuple(bad), moved)

        known = self._recall(key)
        if known is not None and expect not in (None, known.spec):
            known = None  # read the header again: refuse only what the tier holds now
        result = _marked_corrupt(self.calls.call("read_blocks", lambda: work(known)))
        if result.problem == "corrupt" and known is not None:
            # The chunk may have been replaced since its header was read: try a fresh header.
            result = _marked_corrupt(self.calls.call("read_blocks", lambda: work(None)))
        if result.value is None:
            self._forget([key])
        else:
            self.calls.count("block", "ok", times=result.value.blocks.count)
            self.calls.count("block", "corrupt", times=len(result.value.bad))
        self._note(key, result.problem)
        return self.calls.count_found("read_blocks", result, moved)

    def read_extra(self, key: str, name: str, version: int) -> CallResult[EncodedExtra]:
        """Read and verify extra tensors. Bad ones stay until they are written again."""

        def work() -> EncodedExtra | None:
            raw = self._tier.read_extra(key, name)
            if raw is None:
                return None
            if self.kind != "memory":
                raw = opened_extra(raw, self._keys, chunk=key, name=name)
            return parse_extra(raw, name, version, key=key)

        return self._found("read_extra", key, work)

    def put(self, key: str, chunk: EncodedChunk) -> bool:
        """Store a chunk; return False if the tier did not take it."""
        with self._lock:
            # A pending delete is of this same content, which is wanted again now.
            self._pending_deletes.discard(key)
            self._headers.pop(key, None)

        def work() -> bool:
            stored = chunk
            if self._keys is not None and self._keys.active:
                stored = seal_chunk(chunk, self._keys.current(chunk.owner))
            with self._lock:
                replaces = key in self._locked
            if replaces:  # a tier may keep what it has
                self._tier.delete([key])
            self._tier.put(key, stored)
            with self._lock:
                self._locked.discard(key)
            return True

        return self.calls.ask("write", work, chunk.nbytes).value is not None

    def put_extra(self, key: str, extra: EncodedExtra) -> bool:
        """Store extra tensors; return False if the tier did not take them."""

        def work() -> bool:
            raw = extra.raw
            if self._keys is not None and self._keys.active:
                sealing = self._keys.current(extra.owner)
                raw = seal_extra(raw, sealing, chunk=key, name=extra.name)
            return self._tier.put_extra(key, extra.name, raw)

        result = self.calls.call("write_extra", work)
        kept = bool(result.value)
        outcome = result.problem or ("ok" if kept else "absent")
        self.calls.count("write_extra", outcome, extra.nbytes if kept else 0)
        return kept

    def contains(self, keys: Collection[str]) -> set[str]:
        """Return which of these keys the tier holds; none if it does not answer."""
        result = self.calls.ask("contains", lambda: self._tier.contains(keys))
        with self._lock:
            return (result.value or set()) - self._pending_deletes - self._locked

    def delete(self, keys: Collection[str]) -> int | None:
        """Delete these keys; return how many there were, None if the tier has to be asked again."""
        self._forget(keys)
        result = self.calls.ask("delete", lambda: self._tier.delete(keys))
        with self._lock:
            self._locked.difference_update(keys)
            if result.problem is not None:
                self._pending_deletes.update(keys)
        return result.value if result.problem is None else None

    def delete_all(self) -> bool:
        """Delete every key; return False if some could not be listed or deleted: call it again."""
        held = self._list_keys()
        return held is not None and self.delete(held) is not None

    def retry_deletes(self) -> None:
        """Try the failed deletes again, a few at a time: a slow tier gets some of them done."""
        with self._lock:
            pending = list(self._pending_deletes)
        for start in range(0, len(pending), _RETRIED_TOGETHER):
            some = pending[start : start + _RETRIED_TOGETHER]
            if self.calls.open or self.delete(some) is None:
                return
            with self._lock:
                self._pending_deletes.difference_update(some)

    def keys(self) -> set[str]:
        """Return all keys the tier holds; none if it does not answer."""
        listed = self._list_keys() or set()
        with self._lock:
            return listed - self._pending_deletes

    def stats(self) -> TierStats:
        """Return the counters, and what the tier holds now if it answers."""
        at_home = not self._tier.usage_is_asked
        result = self.calls.ask("usage", self._tier.usage, at_home=at_home)
        ops, nbytes, seconds = self.calls.counted()
        with self._lock:
            pending = len(self._pending_deletes)
        usage = result.value or TierUsage(None, None, None, None)
        healthy = self.calls.healthy
        return TierStats(self.name, self.kind, ops, nbytes, seconds, usage, healthy, pending)

    def _found(self, op: str, key: str, work: Callable[[], T | None]) -> CallResult[T]:
        """Read something of a chunk, unless its deletion is pending, and count it."""
        result = CallResult[T](None, None)
        if not self._delete_is_pending(key):
            result = self.calls.call(op, work)
        return self.calls.count_found(op, result, result.value.nbytes if result.value else 0)

    def _list_keys(self) -> set[str] | None:
        return self.calls.ask("keys", lambda: set(self._tier.keys())).value

    def _note(self, key: str, problem: str | None) -> None:
        """Delete a bad copy, and remember whether it is locked."""
        if problem in ("corrupt", "refused"):
            self.delete([key])
        elif problem is None:
            with self._lock:
                self._locked.discard(key)
        elif problem == "locked" and self._keys is not None and self._keys.active:
            with self._lock:
                self._locked.add(key)

    def _delete_is_pending(self, key: str) -> bool:
        with self._lock:
            return key in self._pending_deletes

    def _recall(self, key: str) -> ChunkHeader | None:
        with self._lock:
            header = self._headers.get(key)
            if header is not None:
                self._headers.move_to_end(key)
            return header

    def _remember(self, key: str, header: ChunkHeader) -> None:
        with self._lock:
            self._headers[key] = header
            self._headers.move_to_end(key)
            if len(self._headers) > _HEADERS_KEPT:
                self._headers.popitem(last=False)

    def _forget(self, keys: Collection[str]) -> None:
        with self._lock:
            for key in keys:
                self._headers.pop(key, None)


def _marked_corrupt(result: CallResult[BlocksRead]) -> CallResult[BlocksRead]:
    """Add the problem `corrupt` to a result with bad blocks; the tier itself answered well."""
    bad = result.value is not None and result.value.bad
    return CallResult(result.value, "corrupt") if bad else result
