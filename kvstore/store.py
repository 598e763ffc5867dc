"""A store of chunks in tiers, fastest first: read from the first intact copy, write to all.

A bad copy, a slow tier or a dead tier never raises an exception. It is counted and named in the
outcome, and the next tier is tried. If no tier has the chunk, the read is a miss and the caller
computes the chunk again.
"""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from torch import Tensor

from kvstitch.encryption.keyring import Keyring
from kvstitch.kvstore import tiered_parts
from kvstitch.kvstore.coordination import DeletionEpoch, QueueLimits, SingleFlight, WriteBehindQueue
from kvstitch.kvstore.errors import StoreConfigError, TierUnavailable
from kvstitch.kvstore.fault_tolerant_tier import FaultTolerantTier
from kvstitch.kvstore.format.chunk import EncodedChunk, block_selection, check_selection
from kvstitch.kvstore.format.chunk_identity import ChunkSpec, require_chunk_key, require_extra_name
from kvstitch.kvstore.format.extra_tensors import encode_extra
from kvstitch.kvstore.outcomes import (
    BlocksOutcome,
    ExtraOutcome,
    ReadOutcome,
    ReadProblem,
    StoreStats,
)
from kvstitch.kvstore.tier_caller import BreakerSettings
from kvstitch.kvstore.tiers.base import Tier


class TieredStore:
    """A store, safe to call from several threads. Start and close it, or use it with `with`."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        *,
        write_behind: QueueLimits | None = None,
        breaker: BreakerSettings | None = None,
        write_to: Collection[str] | None = None,
        keys: Keyring | None = None,
        write_through: bool = False,
    ) -> None:
        if len({tier.name for tier in tiers}) != len(tiers):
            raise StoreConfigError("tiers must have different names")
        names = {tier.name for tier in tiers}
        self._write_to = names if write_to is None else frozenset(write_to)
        if unknown := self._write_to - names:
            raise StoreConfigError(f"no such tiers to write to: {', '.join(sorted(unknown))}")
        self._write_through = write_through
        self._tiers = [
            FaultTolerantTier(tier, breaker or BreakerSettings(), keys) for tier in tiers
        ]
        self._limits = write_behind or QueueLimits()
        self._queues = {
            tier: WriteBehindQueue(tier, self._limits)
            for tier in self._tiers
            if tier.kind != "memory"
        }
        self._reads: SingleFlight[tuple[str, ChunkSpec | None], ReadOutcome] = SingleFlight()
        self._puts: SingleFlight[str, bool] = SingleFlight()
        self._deletions = DeletionEpoch()
        self._lock = threading.Lock()
        self._new_keys = 0
        self._already_present = 0

    def start(self) -> None:
        """Start the tiers and the background thread."""
        with ExitStack() as started:
            for tier in self._tiers:
                tier.start()
                started.callback(tier.close)
            started.pop_all()
        for queue in self._queues.values():
            queue.start()

    def close(self) -> None:
        """Finish background writes for a few seconds, then close every tier."""
        self.flush(self._limits.drain_s)
        for queue in self._queues.values():
            queue.close()
        for tier in self._tiers:
            tier.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, key: str, chunk: EncodedChunk, owner: str = "") -> bool:
        """Store an owner's chunk, with its key in its header, in every tier that lacks it."""
        require_chunk_key(key)
        chunk.verify()
        named = chunk.under(key, owner)
        new, led = self._puts.do(key, lambda: self._put(key, named))
        with self._lock:
            if new and led:
                self._new_keys += 1
            else:
                self._already_present += 1
        return new and led

    def read(
        self, key: str, expect: ChunkSpec | None = None, owner: str = "", *, tier: str | None = None
    ) -> ReadOutcome:
        """Read from the first tier with an intact copy, and copy it into the faster tiers; those
        before `tier`, where `locate` found it, are not asked again."""
        require_chunk_key(key)
        return self._reads.do((key, expect), lambda: self._read(key, expect, owner, tier))[0]

    def read_blocks(
        self,
        key: str,
        layer_blocks: Mapping[int, Collection[int]],
        expect: ChunkSpec | None = None,
        *,
        tier: str | None = None,
    ) -> BlocksOutcome:
        """Read and verify only some 64-token blocks of some layers; `tier` as in `read`."""
        selection = block_selection(layer_blocks)
        if expect is not None:
            check_selection(selection, expect)
        require_chunk_key(key)
        return tiered_parts.read_blocks(
            self._tiers[self._first("read_blocks", tier) :], key, selection, expect
        )

    def put_extra(
        self, key: str, name: str, version: int, tensors: Mapping[str, Tensor], owner: str = ""
    ) -> bool:
        """Store extra tensors beside a chunk, in place of older ones with that name."""
        require_chunk_key(key)
        extra = encode_extra(name, version, tensors, key=key, owner=owner)
        return tiered_parts.put_extra(
            self._tiers, self._queues, self._deletions, key, extra, write_to=self._write_to
        )

    def read_extra(self, key: str, name: str, version: int) -> ExtraOutcome | None:
        """Read extra tensors of a chunk, without its k and v, and copy them into memory."""
        require_chunk_key(key)
        require_extra_name(name)
        return tiered_parts.read_extra(self._tiers, self._deletions, key, name, version)

    def locate(self, keys: Collection[str], *, memory_only: bool = False) -> dict[str, str]:
        """Return the fastest tier of each key, by name; keys that no tier holds are absent."""
        found: dict[str, str] = {}
        missing = set(keys)
        for tier in self._tiers:
            if not missing or (memory_only and tier.kind != "memory"):
                break
            held = tier.contains(missing)
            found.update(dict.fromkeys(held, tier.name))
            missing -= held
        return found

    def contains(self, keys: Collection[str]) -> set[str]:
        """Return those of the given keys that some tier holds."""
        if not self._write_through:
            return set(self.locate(keys))
        held = set(keys)
        for tier in self._tiers:
            if held and tier.name in self._write_to:
                held &= tier.contains(held)
        return held

    def keys(self) -> set[str]:
        """Return all keys of all tiers that answer."""
        return set().union(*(tier.keys() for tier in self._tiers))

    def delete(self, keys: Collection[str]) -> dict[str, int]:
        """Delete these keys from every tier, and their background writes."""
        wanted = {require_chunk_key(key) for key in keys}
        self._puts.join(wanted)
        self._deletions.advance()  # a read under way will not store what it found
        for queue in self._queues.values():
            queue.discard(wanted)
        counts = {tier.name: tier.delete(wanted) for tier in self._tiers}
        return {name: count for name, count in counts.items() if count is not None}

    def forget_in_memory(self) -> None:
        """Delete what the memory tier holds, in the clear; what is stored stays."""
        self._deletions.advance()
        for tier in self._tiers:
            if tier.kind == "memory":
                tier.delete_all()

    def delete_own(self) -> bool:
        """Delete what only this process or this machine holds, and all background writes."""
        self._deletions.advance()  # a read under way will not store what it found
        for queue in self._queues.values():
            queue.discard()
        own = [tier for tier in self._tiers if tier.kind != "shared"]
        return all([tier.delete_all() for tier in own])

    @property
    def keeps_on_disk(self) -> bool:
        """Whether a tier keeps chunks on this machine's disk."""
        return any(tier.kind == "disk" for tier in self._tiers)

    @property
    def tier_names(self) -> list[str]:
        """The names of the tiers, fastest first."""
        return [tier.name for tier in self._tiers]

    def flush(self, timeout: float | None = None) -> bool:
        """Wait for the background writes; return False if `timeout` (seconds) ran out first."""
        give_up_at = None if timeout is None else time.monotonic() + timeout
        # All are asked, also after one that did not become empty in time.
        empty = [
            queue.flush(None if give_up_at is None else max(give_up_at - time.monotonic(), 0))
            for queue in self._queues.values()
        ]
        return all(empty)

    def stats(self) -> StoreStats:
        """Return a snapshot of the counters; every healthy tier is asked what it holds."""
        tiers = tuple(tier.stats() for tier in self._tiers)
        queues = self._queues.values()
        dropped, pending = sum(q.dropped for q in queues), sum(q.pending for q in queues)
        with self._lock:
            return StoreStats(tiers, self._new_keys, self._already_present, dropped, pending)

    def _put(self, key: str, chunk: EncodedChunk) -> bool:
        coming = {tier for tier, queue in self._queues.items() if queue.holds(key)}
        lacking = [t for t in self._tiers if t not in coming and not t.contains([key])]
        refused: list[str] = []
        for tier in lacking:
            queue = self._queues.get(tier)
            if tier.name not in self._write_to:
                continue
            if queue is not None and tier.kind == "shared" and not self._write_through:
                queue.submit(key, chunk)
            elif not tier.put(key, chunk):
                refused.append(tier.name)
        if refused and self._write_through:
            raise TierUnavailable(f"{', '.join(refused)} did not take the chunk")
        return len(lacking) == len(self._tiers)

    def _first(self, op: str, found: str | None) -> int:
        """Return the place of the tier where a chunk was found; faster ones have a miss."""
        place = 0 if found is None else self.tier_names.index(found)
        for tier in self._tiers[:place]:
            tier.calls.count(op, "miss")
        return place

    def _read(
        self, key: str, expect: ChunkSpec | None, owner: str, found: str | None
    ) -> ReadOutcome:
        started = time.perf_counter()
        epoch = self._deletions.current()
        problems: list[ReadProblem] = []
        outcome = ReadOutcome(None, None, 0, 0.0)
        first = self._first("read", found)
        for position, tier in enumerate(self._tiers[first:], first):
            result = tier.read(key, expect, owner)
            if result.problem is not None:
                problems.append((tier.name, result.problem))
            if result.value is not None:
                chunk = result.value
                outcome = ReadOutcome(chunk, tier.name, chunk.nbytes, 0.0)
                self._promote(key, chunk, self._tiers[:position], epoch)
                break
        seconds = time.perf_counter() - started
        return replace(outcome, seconds=seconds, problems=tuple(problems))

    def _promote(
        self, key: str, chunk: EncodedChunk, faster: Sequence[FaultTolerantTier], epoch: int
    ) -> None:
        def keep() -> None:
            for tier in faster:
                if tier.kind == "memory":
                    tier.put(key, chunk)
                else:
                    self._queues[tier].submit(key, chunk)

        self._deletions.run_if_unchanged(epoch, keep)
