"""One tier with everything around it that is the same for all tiers.

Verification of what is read, headers remembered, and deletes that are retried until they succeed;
a broken tier or bad bytes are outcomes, never errors of the request. Knows one tier; the order of
tiers is the store's, breaker and counters are :mod:`kvstore.tier_caller`'s.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from kvstore.circuit_breaker import BreakerSettings
from kvstore.format.chunk import ChunkVerifier, EncodedChunk, require_spec
from kvstore.format.chunk_blocks import (
    BlockSelection,
    BlockVerifier,
    EncodedBlocks,
    check_selection,
    selection_ranges,
)
from kvstore.format.chunk_header import ChunkHeader
from kvstore.format.chunk_spec import ChunkSpec
from kvstore.format.extra_tensors import EncodedExtra, parse_extra
from kvstore.store_stats import TierStats
from kvstore.tier_caller import CallResult, TierCaller
from kvstore.tiers.base import Tier, TierUsage

_HEADERS_KEPT = 256


@dataclass(frozen=True)
class BlocksRead:
    """What a read of blocks gave.

    Attributes:
        blocks: the sound ones.
        bad: (layer, block) of those whose bytes are not what was written.
        nbytes: bytes moved, header and bad blocks included.
    """

    blocks: EncodedBlocks
    bad: tuple[tuple[int, int], ...]
    nbytes: int


class FaultTolerantTier:
    """Calls to one tier; none of them raises for a fault of the tier or of stored bytes."""

    def __init__(self, tier: Tier, breaker: BreakerSettings) -> None:
        self.tier = tier
        self.name = tier.name
        self.kind = tier.kind
        self._guard = TierCaller(tier.name, breaker)
        self._lock = threading.Lock()
        # Deletes that failed. Until they succeed the tier counts as not holding these keys.
        self._owed_deletes: set[str] = set()
        # A sparse read would otherwise cost a second round trip and, in bytes, several blocks.
        self._headers: OrderedDict[str, ChunkHeader] = OrderedDict()

    def read(self, key: str, expect: ChunkSpec | None) -> CallResult[EncodedChunk]:
        """The whole chunk, verified; a bad copy is deleted."""
        if self._is_owed(key):
            return self._guard.count_found("read", CallResult(None, None), 0)

        def work() -> EncodedChunk | None:
            if self.kind == "memory":
                chunk = self.tier.read(key)
                if chunk is not None:
                    require_spec(chunk.header, expect)
                return chunk
            check = ChunkVerifier(expect)
            chunk = self.tier.read(key, check)
            if chunk is not None:
                check(chunk.header, chunk.data, chunk.header.nbytes)  # what is left
            return chunk

        attempt = self._guard.call("read", work)
        self._delete_if_bad(key, attempt.problem)
        nbytes = attempt.value.nbytes if attempt.value else 0
        return self._guard.count_found("read", attempt, nbytes)

    def read_blocks(
        self, key: str, selection: BlockSelection, expect: ChunkSpec | None
    ) -> CallResult[BlocksRead]:
        """Some blocks, each verified; a copy with a bad one is deleted.

        With a bad block the attempt has a value (the sound blocks) and the problem ``corrupt``.

        Raises:
            ChunkSpecError: the chunk has no such layer or block.
        """
        if self._is_owed(key):
            return self._guard.count_found("read_blocks", CallResult(None, None), 0)
        moved = 0

        def work(header: ChunkHeader | None) -> BlocksRead | None:
            nonlocal moved
            if header is None:
                header = self.tier.read_header(key)
                if header is None:
                    return None
                moved += header.data_start if self.kind != "memory" else 0
            require_spec(header, expect)
            check_selection(selection, header.spec)
            check = BlockVerifier(selection)
            data = self.tier.read_ranges(
                key, header, selection_ranges(selection, header.spec), check
            )
            if data is None:
                return None
            moved += data.numel()
            blocks, bad = check.result(header, data)
            self._remember(key, header)
            return BlocksRead(blocks, tuple(bad), moved)

        known = self._recall(key)
        if known is not None and expect not in (None, known.spec):
            known = None  # refuse only what is there now
        attempt = _blame(self._guard.call("read_blocks", lambda: work(known)))
        if attempt.problem == "corrupt" and known is not None:
            # The chunk may have been replaced since its header was read; believe only fresh bytes.
            attempt = _blame(self._guard.call("read_blocks", lambda: work(None)))
        if attempt.value is None:
            self._forget([key])
        else:
            self._guard.count("block", "ok", times=attempt.value.blocks.count)
            self._guard.count("block", "corrupt", times=len(attempt.value.bad))
        self._delete_if_bad(key, attempt.problem)
        return self._guard.count_found("read_blocks", attempt, moved)

    def read_extra(self, key: str, name: str, version: int) -> CallResult[EncodedExtra]:
        """Extra tensors, verified. Bad ones stay until they are written anew."""
        if self._is_owed(key):
            return self._guard.count_found("read_extra", CallResult(None, None), 0)

        def work() -> EncodedExtra | None:
            raw = self.tier.read_extra(key, name)
            return None if raw is None else parse_extra(raw, name, version)

        attempt = self._guard.call("read_extra", work)
        nbytes = attempt.value.nbytes if attempt.value else 0
        return self._guard.count_found("read_extra", attempt, nbytes)

    def put(self, key: str, chunk: EncodedChunk) -> bool:
        """Whether the tier took it."""
        with self._lock:
            # An owed delete was of this same content, which is wanted again.
            self._owed_deletes.discard(key)
        self._forget([key])

        def work() -> bool:
            self.tier.put(key, chunk)
            return True

        attempt = self._guard.call("write", work)
        self._guard.count("write", attempt.problem or "ok", chunk.nbytes if attempt.value else 0)
        return attempt.value is not None

    def put_extra(self, key: str, extra: EncodedExtra) -> bool:
        """Whether the tier took it: disk and shared tiers do not without the chunk itself."""
        attempt = self._guard.call(
            "write_extra", lambda: self.tier.put_extra(key, extra.name, extra.raw)
        )
        kept = bool(attempt.value)
        outcome = attempt.problem or ("ok" if kept else "absent")
        self._guard.count("write_extra", outcome, extra.nbytes if kept else 0)
        return kept

    def contains(self, keys: Collection[str]) -> set[str]:
        """Which of these it holds; none of them when it cannot be asked."""
        attempt = self._guard.call("contains", lambda: self.tier.contains(keys))
        self._guard.count("contains", attempt.problem or "ok")
        return self._without_owed(attempt.value or set())

    def delete(self, keys: Collection[str]) -> int | None:
        """How many copies went; None when it failed and will be retried."""
        self._forget(keys)
        attempt = self._guard.call("delete", lambda: self.tier.delete(keys))
        self._guard.count("delete", attempt.problem or "ok")
        if attempt.problem is not None:
            with self._lock:
                self._owed_deletes.update(keys)
        return attempt.value

    def settle(self) -> None:
        """Retry the deletes that failed."""
        with self._lock:
            owed = set(self._owed_deletes)
        if owed and not self._guard.open and self.delete(owed) is not None:
            with self._lock:
                self._owed_deletes -= owed

    def keys(self) -> set[str]:
        attempt = self._guard.call("keys", lambda: set(self.tier.keys()))
        self._guard.count("keys", attempt.problem or "ok")
        return self._without_owed(attempt.value or set())

    def stats(self) -> TierStats:
        attempt = self._guard.call("usage", self.tier.usage)
        self._guard.count("usage", attempt.problem or "ok")
        ops, nbytes, seconds = self._guard.counted()
        with self._lock:
            pending = len(self._owed_deletes)
        return TierStats(
            name=self.name,
            kind=self.kind,
            ops=ops,
            bytes=nbytes,
            seconds=seconds,
            usage=attempt.value or TierUsage(None, None, None, None),
            healthy=self._guard.healthy,
            pending_deletes=pending,
        )

    def _delete_if_bad(self, key: str, problem: str | None) -> None:
        if problem in ("corrupt", "refused"):
            self.delete([key])

    def _is_owed(self, key: str) -> bool:
        with self._lock:
            return key in self._owed_deletes

    def _without_owed(self, keys: set[str]) -> set[str]:
        with self._lock:
            return keys - self._owed_deletes

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


def _blame(attempt: CallResult[BlocksRead]) -> CallResult[BlocksRead]:
    """A read with bad blocks has a problem, though the tier is well and the others are sound."""
    bad = attempt.value is not None and attempt.value.bad
    return CallResult(attempt.value, "corrupt") if bad else attempt
