"""How threads that use one store get on with one another, and with its background writes.

A tier has a bounded queue and a thread of its own, so a slow one holds up no other. When a queue is
full, its oldest write is dropped and counted, because the newest chunks are the most likely to be
read by other processes.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from kvstitch.kvstore.fault_tolerant_tier import FaultTolerantTier
from kvstitch.kvstore.format.chunk import EncodedChunk
from kvstitch.kvstore.format.extra_tensors import EncodedExtra

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """Runs overlapping calls for one key once; the other callers wait for that result."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[K, Future[T]] = {}

    def do(self, key: K, work: Callable[[], T]) -> tuple[T, bool]:
        """Do the work for `key`, or wait for a caller that is doing it already."""
        with self._lock:
            flight = self._flights.get(key)
            leading = flight is None
            if flight is None:
                flight = self._flights[key] = Future()
        if not leading:
            return flight.result(), False
        try:
            flight.set_result(work())
        except BaseException as error:
            flight.set_exception(error)
        finally:
            with self._lock:
                del self._flights[key]
        return flight.result(), True

    def join(self, keys: Collection[K]) -> None:
        """Wait until no work is under way for these keys; its result is ignored."""
        with self._lock:
            flights = [self._flights[key] for key in keys if key in self._flights]
        wait(flights)


class DeletionEpoch:
    """Stops a copy that was read before a deletion from being stored again after it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def current(self) -> int:
        with self._lock:
            return self._count

    def advance(self) -> None:
        """Mark the start of a deletion: nothing that was read earlier will be kept."""
        with self._lock:
            self._count += 1

    def run_if_unchanged(self, epoch: int, keep: Callable[[], None]) -> bool:
        """Call `keep` unless a deletion started after `epoch`; `keep` must not block."""
        with self._lock:
            if self._count != epoch:
                return False
            keep()
            return True


@dataclass(frozen=True)
class QueueLimits:
    """Bounds of a queue; the one that is reached first counts."""

    items: int = 256
    bytes: int = 1 << 30
    drain_s: float = 5.0


Item = EncodedChunk | EncodedExtra


@dataclass(frozen=True)
class _Write:
    key: str
    item: Item

    @property
    def extra(self) -> str | None:
        """Name of the extra tensors; None for a chunk."""
        return self.item.name if isinstance(self.item, EncodedExtra) else None


class WriteBehindQueue:
    """The queue of one tier and its thread, which also tries the tier's failed deletes again."""

    def __init__(self, tier: FaultTolerantTier, limits: QueueLimits) -> None:
        self._tier = tier
        self._limits = limits
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

    def close(self) -> None:
        """Drop and count what still waits, and end the thread after the write under way."""
        if self._thread is None:
            return
        with self._changed:
            self._stopping = True
            while self._queue:
                self._drop_oldest()
            self._changed.notify_all()
        self._thread.join()
        self._thread = None

    def submit(self, key: str, item: Item) -> None:
        """Queue a write unless the same chunk is already waiting."""
        write = _Write(key, item)
        with self._changed:
            # A chunk never changes, but extra tensors may come again in another version.
            if write.extra is None and self.holds(key):
                return
            self._queue.append(write)
            self._queued_bytes += item.nbytes
            while len(self._queue) > self._limits.items or self._queued_bytes > self._limits.bytes:
                self._drop_oldest()
            self._changed.notify_all()

    def holds(self, key: str) -> bool:
        """Return whether a write of that chunk is waiting or under way."""
        with self._changed:
            waiting = (*self._queue, self._current) if self._current else self._queue
            return any(write.key == key and write.extra is None for write in waiting)

    def discard(self, keys: Collection[str] | None = None) -> None:
        """Drop the waiting writes of these keys (default: all), and wait for one under way."""

        def dropped(write: _Write) -> bool:
            return keys is None or write.key in keys

        with self._changed:
            self._queue = deque(write for write in self._queue if not dropped(write))
            self._queued_bytes = sum(write.item.nbytes for write in self._queue)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._current is None or not dropped(self._current))

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the queue is empty; return False if `timeout` (seconds) ran out first."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._queue and self._current is None, timeout
            )

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
                self._run_write(self._current)
            if time.monotonic() >= chores_due:
                self._tier.retry_deletes()
                chores_due = time.monotonic() + 1.0

    def _run_write(self, write: _Write) -> None:
        if isinstance(write.item, EncodedExtra):
            self._tier.put_extra(write.key, write.item)
        else:
            self._tier.put(write.key, write.item)
