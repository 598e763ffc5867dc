"""Background writes: a bounded queue and a thread for each tier, so a slow tier holds up no other.

When a queue is full, its oldest write is dropped and counted, because the newest chunks are the
most likely to be read by other processes.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kvstore.fault_tolerant_tier import FaultTolerantTier
from kvstore.format.chunk import EncodedChunk
from kvstore.format.extra_tensors import EncodedExtra


@dataclass(frozen=True)
class QueueLimits:
    """Bounds of the queue; the one that is reached first counts.

    Attributes:
        items: writes in the queue.
        bytes: bytes of the chunks in the queue; they stay in memory until they are written.
        drain_s: longest wait for the queue at close, in seconds.
    """

    items: int = 256
    bytes: int = 1 << 30
    drain_s: float = 5.0


Item = EncodedChunk | EncodedExtra


@dataclass(frozen=True)
class _Write:
    tier: FaultTolerantTier
    key: str
    item: Item

    @property
    def extra(self) -> str | None:
        """Name of the extra tensors; None for a chunk."""
        return self.item.name if isinstance(self.item, EncodedExtra) else None

    def run(self) -> None:
        if isinstance(self.item, EncodedExtra):
            self.tier.put_extra(self.key, self.item)
        else:
            self.tier.put(self.key, self.item)


class WriteBehindQueue:
    """One queue and its thread.

    Args:
        limits: bounds of the queue.
        chores: called about once a second by the thread.
    """

    def __init__(self, limits: QueueLimits, chores: Callable[[], None]) -> None:
        self._limits = limits
        self._chores = chores
        self._changed = threading.Condition()
        self._queue: deque[_Write] = deque()
        self._queued_bytes = 0
        self._current: _Write | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Writes dropped since the start."""
        with self._changed:
            return self._dropped

    @property
    def pending(self) -> int:
        """Writes waiting or under way."""
        with self._changed:
            return len(self._queue) + (self._current is not None)

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="kvstore-writer", daemon=True)
        self._thread.start()

    def close(self, drain_s: float | None = None) -> None:
        """Write as much as possible within so many seconds (default: the limit's); drop the rest.

        What is dropped is counted.
        """
        if self._thread is None:
            return
        self.flush(self._limits.drain_s if drain_s is None else drain_s)
        with self._changed:
            self._stopping = True
            while self._queue:
                self._drop_oldest()
            self._changed.notify_all()
        self._thread.join()
        self._thread = None

    def submit(self, tier: FaultTolerantTier, key: str, item: Item) -> None:
        """Queue a write unless the same chunk is already waiting.

        Writes are done in order, so extra tensors queued after their chunk find it in the tier.
        """
        write = _Write(tier, key, item)
        with self._changed:
            # A chunk never changes, but extra tensors may come again in another version.
            if write.extra is None and self._holds(tier, key):
                return
            self._queue.append(write)
            self._queued_bytes += item.nbytes
            while len(self._queue) > self._limits.items or self._queued_bytes > self._limits.bytes:
                self._drop_oldest()
            self._changed.notify_all()

    def holds(self, tier: FaultTolerantTier, key: str) -> bool:
        """Return whether a write of that chunk is waiting or under way."""
        with self._changed:
            return self._holds(tier, key)

    def discard(self, keys: Collection[str]) -> None:
        """Drop the waiting writes of these keys, and wait for one that is under way."""
        with self._changed:
            kept = [write for write in self._queue if write.key not in keys]
            self._queue = deque(kept)
            self._queued_bytes = sum(write.item.nbytes for write in kept)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._current is None or self._current.key not in keys)

    def discard_all(self) -> None:
        """Drop all waiting writes, and wait for one that is under way."""
        with self._changed:
            self._queue.clear()
            self._queued_bytes = 0
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._current is None)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the queue is empty; return False if `timeout` (seconds) ran out first."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._queue and self._current is None, timeout
            )

    def _holds(self, tier: FaultTolerantTier, key: str) -> bool:
        waiting = (*self._queue, self._current) if self._current else self._queue
        return any(w.tier is tier and w.key == key and w.extra is None for w in waiting)

    def _drop_oldest(self) -> None:
        self._queued_bytes -= self._queue.popleft().item.nbytes
        self._dropped += 1

    def _run(self) -> None:
        chores_due = time.monotonic() + 1.0
        while True:
            with self._changed:
                self._current = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._stopping, timeout=1.0)
                if self._stopping:
                    return
                if self._queue:
                    self._current = self._queue.popleft()
                    self._queued_bytes -= self._current.item.nbytes
            if self._current is not None:
                self._current.run()
            if time.monotonic() >= chores_due:
                self._chores()
                chores_due = time.monotonic() + 1.0


class BackgroundWrites:
    """The queues of all tiers. Each thread also tries the failed deletes of its tier again.

    Args:
        tiers: all tiers of the store. Memory needs no queue.
        limits: bounds of each queue. A chunk that waits in two queues is in memory once.
    """

    def __init__(self, tiers: Sequence[FaultTolerantTier], limits: QueueLimits) -> None:
        self._limits = limits
        self._queues = {
            tier: WriteBehindQueue(limits, tier.retry_deletes)
            for tier in tiers
            if tier.kind != "memory"
        }

    @property
    def dropped(self) -> int:
        """Writes dropped since the start."""
        return sum(queue.dropped for queue in self._queues.values())

    @property
    def pending(self) -> int:
        """Writes waiting or under way."""
        return sum(queue.pending for queue in self._queues.values())

    def start(self) -> None:
        for queue in self._queues.values():
            queue.start()

    def close(self) -> None:
        """Write as much as possible within the limit of one queue; drop and count the rest."""
        give_up_at = time.monotonic() + self._limits.drain_s
        for queue in self._queues.values():
            queue.close(max(give_up_at - time.monotonic(), 0.0))

    def submit(self, tier: FaultTolerantTier, key: str, item: Item) -> None:
        """Queue a write unless the same chunk is already waiting for that tier."""
        self._queues[tier].submit(tier, key, item)

    def holds(self, tier: FaultTolerantTier, key: str) -> bool:
        """Return whether a write of that chunk is waiting or under way."""
        queue = self._queues.get(tier)
        return queue is not None and queue.holds(tier, key)

    def discard(self, keys: Collection[str]) -> None:
        """Drop the waiting writes of these keys, and wait for those that are under way."""
        for queue in self._queues.values():
            queue.discard(keys)

    def discard_all(self) -> None:
        """Drop all waiting writes, and wait for those that are under way."""
        for queue in self._queues.values():
            queue.discard_all()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all queues are empty; return False if `timeout` (seconds) ran out first."""
        give_up_at = None if timeout is None else time.monotonic() + timeout
        # All are asked, also after one that did not become empty in time.
        empty = [
            queue.flush(None if give_up_at is None else max(give_up_at - time.monotonic(), 0.0))
            for queue in self._queues.values()
        ]
        return all(empty)
