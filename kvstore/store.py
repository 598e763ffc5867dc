"""Tiers in order, fastest first: read from the first that has a sound copy, write to all.

A bad copy, a slow tier or a dead one is never an exception: it is counted, named in the outcome,
and the next tier is asked; at the end stands a miss, and the caller recomputes. Knows nothing of
models, requests or HTTP.
"""

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from torch import Tensor

from kvstore.chunk import EncodedChunk
from kvstore.guarded import GuardedTier
from kvstore.header import ChunkHeader
from kvstore.keys import require_chunk_key
from kvstore.singleflight import SingleFlight
from kvstore.spec import ChunkSpec
from kvstore.stats import StoreStats
from kvstore.tiers.base import Tier
from kvstore.tiers.breaker import BreakerSettings
from kvstore.writebehind import QueueLimits, WriteBehind

Problem = tuple[str, str]
"""(tier, kind); kinds: corrupt, refused, timeout, unavailable, error."""


@dataclass(frozen=True)
class ReadOutcome:
    """What a read gave.

    Attributes:
        chunk: the verified chunk, or None on a miss.
        tier: name of the tier it came from.
        nbytes: bytes of its container; 0 on a miss.
        seconds: time of the whole read, verification and failed tiers included.
        problems: what went wrong on the way, in order; a plain miss is not a problem.
    """

    chunk: EncodedChunk | None
    tier: str | None
    nbytes: int
    seconds: float
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class LayersOutcome:
    """What a read of some layers gave; fields as in :class:`ReadOutcome`.

    Attributes:
        header: decodes the layers: ``header.decode_layer(l, layers[l])``; None on a miss.
        layers: layer to its verified bytes (host uint8); empty on a miss.
    """

    header: ChunkHeader | None
    layers: dict[int, Tensor]
    tier: str | None
    nbytes: int
    seconds: float
    problems: tuple[Problem, ...] = ()


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
        self._tiers = [GuardedTier(tier, breaker or BreakerSettings()) for tier in tiers]
        self._writer = WriteBehind(write_behind or QueueLimits(), self._settle)
        self._reads: SingleFlight[tuple[str, ChunkSpec | None], ReadOutcome] = SingleFlight()
        self._puts: SingleFlight[str, bool] = SingleFlight()
        self._lock = threading.Lock()
        self._deletions = 0
        self._new_keys = 0
        self._already_present = 0
        self._shared_reads = 0

    def start(self) -> None:
        """Start the tiers and the background thread.

        Raises:
            TierError: a tier cannot work at all (directory taken, package missing, bad URL).
        """
        started: list[GuardedTier] = []
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

    def read_layers(
        self, key: str, layers: Sequence[int], expect: ChunkSpec | None = None
    ) -> LayersOutcome:
        """Only these layers, verified, from the first tier that has them; nothing is promoted.

        Raises:
            ChunkSpecError: the chunk has no such layer.
        """
        require_chunk_key(key)
        started = time.perf_counter()
        problems: list[Problem] = []
        for guarded in self._tiers:
            attempt = guarded.read_layers(key, layers, expect)
            if attempt.problem is not None:
                problems.append((guarded.name, attempt.problem))
            if attempt.value is not None:
                header, found = attempt.value
                nbytes = sum(raw.numel() for raw in found.values())
                seconds = time.perf_counter() - started
                return LayersOutcome(header, found, guarded.name, nbytes, seconds, tuple(problems))
        return LayersOutcome(None, {}, None, 0, time.perf_counter() - started, tuple(problems))

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
        with self._lock:
            self._deletions += 1  # a read under way will not promote what it found
        self._writer.discard(wanted)
        counts = {guarded.name: guarded.delete(wanted) for guarded in self._tiers}
        return {name: count for name, count in counts.items() if count is not None}

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
        with self._lock:
            deletions = self._deletions
        problems: list[Problem] = []
        outcome = ReadOutcome(None, None, 0, 0.0)
        for position, guarded in enumerate(self._tiers):
            attempt = guarded.read(key, expect)
            if attempt.problem is not None:
                problems.append((guarded.name, attempt.problem))
            if attempt.value is not None:
                chunk = attempt.value
                outcome = ReadOutcome(chunk, guarded.name, chunk.nbytes, 0.0)
                self._promote(key, chunk, self._tiers[:position], deletions)
                break
        seconds = time.perf_counter() - started
        return replace(outcome, seconds=seconds, problems=tuple(problems))

    def _promote(
        self, key: str, chunk: EncodedChunk, faster: Sequence[GuardedTier], deletions: int
    ) -> None:
        with self._lock:
            if self._deletions != deletions:
                return
            for guarded in faster:
                if guarded.kind == "memory":
                    guarded.put(key, chunk)
                else:
                    self._writer.submit(guarded, key, chunk)

    def _settle(self) -> None:
        for guarded in self._tiers:
            guarded.settle()
