"""Tiers in order, fastest first: read from the first that has a sound copy, write to all.

A bad copy, a slow tier or a dead one is never an exception: it is counted, named in the outcome,
and the next tier is asked; at the end stands a miss, and the caller recomputes. Knows nothing of
models, requests or HTTP.
"""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from torch import Tensor

from kvstore import tiered_extras
from kvstore.circuit_breaker import BreakerSettings
from kvstore.deletion_epoch import DeletionEpoch
from kvstore.fault_tolerant_tier import FaultTolerantTier
from kvstore.format.chunk import EncodedChunk
from kvstore.format.chunk_blocks import block_selection, check_selection
from kvstore.format.chunk_keys import require_chunk_key, require_extra_name
from kvstore.format.chunk_spec import ChunkSpec
from kvstore.format.extra_tensors import encode_extra
from kvstore.read_outcomes import BlocksOutcome, ExtraOutcome, ReadOutcome, ReadProblem
from kvstore.single_flight import SingleFlight
from kvstore.store_stats import StoreStats
from kvstore.tiered_blocks import read_blocks
from kvstore.tiers.base import Tier
from kvstore.write_behind import QueueLimits, WriteBehindQueue


class TieredStore:
    """Safe to call from several threads. Use as a context manager, or start and close it.

    Args:
        tiers: fastest first, names unique. The store starts and closes them.
        write_behind: bounds of the queue of background writes (shared tiers, promotions to disk).
        breaker: when a failing tier is left alone, and for how long; each tier has its own.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        *,
        write_behind: QueueLimits | None = None,
        breaker: BreakerSettings | None = None,
    ) -> None:
        if len({tier.name for tier in tiers}) != len(tiers):
            raise ValueError("tiers must have different names")
        self._tiers = [FaultTolerantTier(tier, breaker or BreakerSettings()) for tier in tiers]
        self._writer = WriteBehindQueue(write_behind or QueueLimits(), self._settle)
        self._reads: SingleFlight[tuple[str, ChunkSpec | None], ReadOutcome] = SingleFlight()
        self._puts: SingleFlight[str, bool] = SingleFlight()
        self._purges = DeletionEpoch()
        self._lock = threading.Lock()
        self._new_keys = 0
        self._already_present = 0
        self._shared_reads = 0

    def start(self) -> None:
        """Start the tiers and the background thread.

        Raises:
            TierError: a tier cannot work at all (directory taken, package missing, bad URL).
        """
        started: list[FaultTolerantTier] = []
        try:
            for guarded in self._tiers:
                guarded.tier.start()
                started.append(guarded)
        except BaseException:
            for guarded in started:
                guarded.tier.close()
            raise
        self._writer.start()

    def close(self) -> None:
        """Finish background writes for a few seconds, then close every tier."""
        self._writer.close()
        for guarded in self._tiers:
            guarded.tier.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def put(self, key: str, chunk: EncodedChunk) -> bool:
        """Keep a chunk. Returns whether the key was new, i.e. no tier held it.

        Tiers that hold it already are left alone, the others get it: memory and disk now, shared
        tiers in the background. A tier that fails is counted, not raised.

        Raises:
            ChunkSpecError: not a chunk key.
            ChunkCorrupt: the chunk's data were changed after it was encoded.
        """
        require_chunk_key(key)
        chunk.verify()
        new, led = self._puts.do(key, lambda: self._put(key, chunk))
        with self._lock:
            if new and led:
                self._new_keys += 1
            else:
                self._already_present += 1
        return new and led

    def read(self, key: str, expect: ChunkSpec | None = None) -> ReadOutcome:
        """The chunk from the first tier with a sound copy, copied into the faster tiers.

        Overlapping reads of one key share one read.

        Args:
            key: chunk key.
            expect: refuse (and delete) copies of any other spec or fingerprint.
        """
        require_chunk_key(key)
        outcome, led = self._reads.do((key, expect), lambda: self._read(key, expect))
        if not led:
            with self._lock:
                self._shared_reads += 1
        return outcome

    def read_blocks(
        self,
        key: str,
        layer_blocks: Mapping[int, Collection[int]],
        expect: ChunkSpec | None = None,
    ) -> BlocksOutcome:
        """Only these 64-token blocks of these layers, each verified; nothing is promoted.

        Moves the bytes of the blocks alone, and the chunk's header if it was not read lately. A
        tier that has a bad block is passed over for all of them, so that blocks of two copies
        (which may differ in low bits) never mix; if no tier has them all, the copy with the most
        sound ones is the answer and ``missing`` says which to recompute.

        Args:
            key: chunk key.
            layer_blocks: layer to block numbers, in any order.
            expect: as in ``read``.

        Raises:
            ChunkSpecError: the chunk has no such layer or block.
        """
        selection = block_selection(layer_blocks)
        if expect is not None:
            check_selection(selection, expect)
        return read_blocks(self._tiers, require_chunk_key(key), selection, expect)

    def put_extra(self, key: str, name: str, version: int, tensors: Mapping[str, Tensor]) -> bool:
        """Keep extra tensors of a chunk, in place of older ones of that name.

        They live and go with the chunk in every tier that holds it: memory and disk now, shared
        tiers in the background.

        Args:
            key: of a chunk that some tier holds.
            name: what they are, e.g. ``"sketch"``: a-z, 0-9 and _.
            version: of whoever computes them; readers of another version get None.
            tensors: any dtypes and shapes.

        Returns:
            Whether the chunk was there to add them to. Also False when a delete (of any chunk)
            came in between: they are lost then and can be put again.

        Raises:
            ChunkSpecError: not a chunk key, bad name, or a dtype that cannot be stored.
        """
        require_chunk_key(key)
        extra = encode_extra(name, version, tensors)
        return tiered_extras.put_extra(self._tiers, self._writer, self._purges, key, extra)

    def read_extra(self, key: str, name: str, version: int) -> ExtraOutcome | None:
        """Extra tensors of a chunk, without its k and v; copied into the memory tier.

        None when no tier has sound ones of that version; the counters say why.

        Raises:
            ChunkSpecError: not a chunk key, or bad name.
        """
        require_chunk_key(key)
        require_extra_name(name)
        return tiered_extras.read_extra(self._tiers, self._purges, key, name, version)

    def locate(self, keys: Collection[str]) -> dict[str, str]:
        """Key to the fastest tier that holds it; keys that no tier holds are absent."""
        found: dict[str, str] = {}
        missing = set(keys)
        for guarded in self._tiers:
            if not missing:
                break
            held = guarded.contains(missing)
            found.update(dict.fromkeys(held, guarded.name))
            missing -= held
        return found

    def contains(self, keys: Collection[str]) -> set[str]:
        """Which of these some tier holds."""
        return set(self.locate(keys))

    def keys(self) -> set[str]:
        """Every key of every tier that answers."""
        return set().union(*(guarded.keys() for guarded in self._tiers))

    def delete(self, keys: Collection[str]) -> dict[str, int]:
        """Remove these from every tier, background writes included; tier to copies removed.

        A tier that cannot be reached is absent from the result: it counts as not holding these
        keys from now on, and the delete is retried in the background (``pending_deletes`` in the
        stats) until it succeeds or this process ends.
        """
        wanted = {require_chunk_key(key) for key in keys}
        self._puts.join(wanted)
        self._purges.begin()  # a read under way will not promote what it found
        self._writer.discard(wanted)
        counts = {guarded.name: guarded.delete(wanted) for guarded in self._tiers}
        return {name: count for name, count in counts.items() if count is not None}

    @property
    def tier_names(self) -> list[str]:
        """Fastest first."""
        return [guarded.name for guarded in self._tiers]

    def flush(self, timeout: float | None = None) -> bool:
        """Wait for the background writes; False when ``timeout`` (s) ran out first."""
        return self._writer.flush(timeout)

    @property
    def keys_written(self) -> int:
        """How many new keys were ever put: a new order of known chunks must not raise it."""
        with self._lock:
            return self._new_keys

    def stats(self) -> StoreStats:
        """A snapshot; asks every tier that is healthy what it holds."""
        tiers = tuple(guarded.stats() for guarded in self._tiers)
        dropped, pending = self._writer.dropped, self._writer.pending
        with self._lock:
            return StoreStats(
                tiers, self._new_keys, self._already_present, self._shared_reads, dropped, pending
            )

    def _put(self, key: str, chunk: EncodedChunk) -> bool:
        new = True
        for guarded in self._tiers:
            if self._writer.holds(guarded, key) or guarded.contains([key]):
                new = False
            elif guarded.kind == "shared":
                self._writer.submit(guarded, key, chunk)
            else:
                guarded.put(key, chunk)
        return new

    def _read(self, key: str, expect: ChunkSpec | None) -> ReadOutcome:
        started = time.perf_counter()
        since = self._purges.now()
        problems: list[ReadProblem] = []
        outcome = ReadOutcome(None, None, 0, 0.0)
        for position, guarded in enumerate(self._tiers):
            attempt = guarded.read(key, expect)
            if attempt.problem is not None:
                problems.append((guarded.name, attempt.problem))
            if attempt.value is not None:
                chunk = attempt.value
                outcome = ReadOutcome(chunk, guarded.name, chunk.nbytes, 0.0)
                self._promote(key, chunk, self._tiers[:position], since)
                break
        seconds = time.perf_counter() - started
        return replace(outcome, seconds=seconds, problems=tuple(problems))

    def _promote(
        self, key: str, chunk: EncodedChunk, faster: Sequence[FaultTolerantTier], since: int
    ) -> None:
        def keep() -> None:
            for guarded in faster:
                if guarded.kind == "memory":
                    guarded.put(key, chunk)
                else:
                    self._writer.submit(guarded, key, chunk)

        self._purges.unless_since(since, keep)

    def _settle(self) -> None:
        for guarded in self._tiers:
            guarded.settle()
