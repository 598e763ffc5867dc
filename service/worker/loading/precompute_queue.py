"""The queue of chunks that are computed and stored while no request needs the engine.

If a chunk is stored without its sketch, it is computed again, and only the sketch is added.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass

from kvstore import TieredStore
from service.worker.core.request import PrecomputedEvent
from service.worker.core.steps import Steps
from service.worker.forward.chunk_prefill import ChunkPrefill, ComputedChunk
from service.worker.loading.loader import Loader
from service.worker.model.addressing import Address

# Most chunks that are computed but not yet written; bounds memory when the disk is slow.
MAX_UNWRITTEN = 4
# Most purged keys that are remembered. They are, because a prompt that started before its document
# was deleted must not store the chunk again.
MAX_PURGED = 100_000
# Most writes of chunks that are remembered, for requests that came while these were computed.
MAX_WRITES = 1024


@dataclass
class Task:
    """One chunk to compute and store.

    Attributes:
        id: id of the precompute call; None for a write-back after a request missed the chunk.
        chunk_id: number of the chunk in that call; -1 for a write-back.
        started_at: when its computation started, by time.monotonic.
        write: the write to the store; None until it starts, and if the chunk was already stored.
        bytes: size of the encoded chunk.
    """

    address: Address
    id: str | None
    chunk_id: int
    started_at: float = 0.0
    write: Future[bool] | None = None
    bytes: int = 0


class PrecomputeQueue:
    """The queue; `advance` runs one step of the computation of one chunk.

    Attributes:
        counts: number of finished tasks by outcome: stored, present or failed.
    """

    def __init__(self, chunks: ChunkPrefill, store: TieredStore, loader: Loader) -> None:
        self._chunks = chunks
        self._store = store
        self._loader = loader
        self._queue: deque[Task] = deque()
        self._write_backs: set[str] = set()
        self._purged: OrderedDict[str, None] = OrderedDict()
        self._current: Task | None = None
        self._steps: Steps[ComputedChunk] | None = None
        self._writing: list[Task] = []
        self._writes: OrderedDict[str, Future[bool]] = OrderedDict()
        self.counts = {"stored": 0, "present": 0, "failed": 0}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute right now (writes may still be running)."""
        if self._steps is None and len(self._writing) >= MAX_UNWRITTEN:
            return True
        return self._steps is None and not self._queue

    @property
    def pending(self) -> int:
        """Number of tasks that are not finished."""
        return len(self._queue) + len(self._writing) + (self._current is not None)

    def add(self, address: Address, *, id: str | None = None, chunk_id: int = -1) -> None:
        """Adds a chunk; for a write-back (without `id`) only if it is neither queued nor purged."""
        if id is None:
            if address.key in self._write_backs or address.key in self._purged:
                return
            self._write_backs.add(address.key)
        else:
            self._purged.pop(address.key, None)
        self._queue.append(Task(address, id, chunk_id))

    def store(self, address: Address, computed: ComputedChunk) -> None:
        """Stores a chunk that a request has computed, unless the chunk was purged meanwhile."""
        if address.key in self._purged:
            return
        task = Task(address, None, -1, time.monotonic(), bytes=computed.chunk.nbytes)
        self._write(task, computed)
        self._writing.append(task)

    def write_of(self, key: str) -> Future[bool] | None:
        """The write of a chunk that was computed here lately; None if it was not."""
        return self._writes.get(key)

    def _write(self, task: Task, computed: ComputedChunk) -> None:
        write = task.write = self._loader.put(task.address, computed)
        self._writes[task.address.key] = write
        self._writes.move_to_end(task.address.key)
        while len(self._writes) > MAX_WRITES:
            self._writes.popitem(last=False)

    def forget(self, keys: Collection[str], texts: Collection[tuple[int, ...]] = ()) -> None:
        """Drops write-backs of chunks that are about to be purged.

        Chunks of precompute calls are still computed: their caller also makes the purges and knows
        about them.

        Args:
            texts: token ids of the chunks; what was kept of prefixes that hold them is dropped.
        """
        for ids in texts:
            self._chunks.forget(ids)
        for key in keys:
            self._writes.pop(key, None)
            self._purged[key] = None
            self._purged.move_to_end(key)
        while len(self._purged) > MAX_PURGED:
            self._purged.popitem(last=False)
        gone = self._write_backs.intersection(keys)
        self._queue = deque(t for t in self._queue if t.id is not None or t.address.key not in gone)
        self._write_backs -= gone
        current = self._current
        if current is not None and current.id is None and current.address.key in keys:
            if self._steps is not None:
                self._steps.close()
            self._current, self._steps = None, None
        for task in self._writing:
            if task.write is not None and task.id is None and task.address.key in keys:
                task.write.exception()  # waits: the purge must come after a write that has started

    def advance(self) -> None:
        """Runs one step (at most a layer) of the current chunk, or starts the next chunk."""
        if self._steps is None:
            self._start(self._queue.popleft())
            return
        try:
            next(self._steps)
        except StopIteration as end:
            self._store_current(end.value)

    def finished(self) -> list[PrecomputedEvent]:
        """Events of the tasks of precompute calls that finished since the last call."""
        events = []
        for task in [t for t in self._writing if t.write is None or t.write.done()]:
            self._writing.remove(task)
            event = self._event(task)
            self.counts[event.status] += 1
            if task.id is not None:
                events.append(event)
        return events

    def fail_current(self, error: Exception) -> None:
        """Reports an error that `advance` raised, and drops the current chunk."""
        task, self._current, self._steps = self._current, None, None
        if task is not None:
            failed: Future[bool] = Future()
            failed.set_exception(error)
            task.write = failed
            self._finish(task)

    def _start(self, task: Task) -> None:
        task.started_at = time.monotonic()
        self._current = task
        if self._loader.is_complete(task.address):
            self._current = None
            self._finish(task)  # `write` stays None, which means that the chunk was present
            return
        self._steps = self._chunks.compute(task.address)

    def _store_current(self, computed: ComputedChunk) -> None:
        task, self._current, self._steps = self._current, None, None
        assert task is not None
        task.bytes = computed.chunk.nbytes
        self._write(task, computed)
        self._finish(task)

    def _finish(self, task: Task) -> None:
        self._write_backs.discard(task.address.key)
        self._writing.append(task)

    def _event(self, task: Task) -> PrecomputedEvent:
        status, message = "present", ""
        if task.write is not None:
            error = task.write.exception()
            status, message = ("stored", "") if error is None else ("failed", str(error))
        seconds = time.monotonic() - task.started_at
        return PrecomputedEvent(task.id or "", task.chunk_id, status, task.bytes, seconds, message)
