"""A queue of chunks to prefill when nobody waits, and to store.

A chunk that is stored without its sketch is computed again, and only the sketch is added.
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
from service.worker.forward.chunk_prefill import ComputedChunk, compute_chunk
from service.worker.loading.loader import Loader
from service.worker.model.adapters.base import DecoderAdapter
from service.worker.model.addressing import Address

# Chunks computed but not yet written: bounds the memory a slow disk can pile up.
MAX_UNWRITTEN = 4
# Purged keys that are remembered: a prompt that began before its document was deleted must not
# bring the chunk back when it ends.
MAX_PURGED = 100_000


@dataclass
class Task:
    """One chunk to store.

    Attributes:
        id: of the call that asked for it; None: nobody did, it is written back after a miss.
        started_at: by time.monotonic.
    """

    address: Address
    id: str | None
    chunk_id: int
    started_at: float = 0.0
    write: Future[bool] | None = None
    bytes: int = 0


class PrecomputeQueue:
    """`advance` runs one step of one chunk."""

    def __init__(self, adapter: DecoderAdapter, store: TieredStore, loader: Loader) -> None:
        self._adapter = adapter
        self._store = store
        self._loader = loader
        self._queue: deque[Task] = deque()
        self._write_backs: set[str] = set()
        self._purged: OrderedDict[str, None] = OrderedDict()
        self._current: Task | None = None
        self._steps: Steps[ComputedChunk] | None = None
        self._writing: list[Task] = []
        self.counts = {"stored": 0, "present": 0, "failed": 0}

    @property
    def idle(self) -> bool:
        """Nothing to compute right now (writes may still be under way)."""
        if self._steps is None and len(self._writing) >= MAX_UNWRITTEN:
            return True
        return self._steps is None and not self._queue

    @property
    def pending(self) -> int:
        return len(self._queue) + len(self._writing) + (self._current is not None)

    def add(self, address: Address, *, id: str | None = None, chunk_id: int = -1) -> None:
        if id is None:
            if address.key in self._write_backs or address.key in self._purged:
                return
            self._write_backs.add(address.key)
        else:
            self._purged.pop(address.key, None)
        self._queue.append(Task(address, id, chunk_id))

    def store(self, address: Address, computed: ComputedChunk) -> None:
        """Store what a request had to compute anyway, unless it was purged meanwhile."""
        if address.key in self._purged:
            return
        task = Task(address, None, -1, time.monotonic(), bytes=computed.chunk.nbytes)
        task.write = self._loader.put(address, computed)
        self._writing.append(task)

    def forget(self, keys: Collection[str]) -> None:
        """These are about to be purged: what was to be written back of them is not.

        Chunks that a call asked for are still computed: whoever made the call knows of the purge.
        """
        for key in keys:
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
                task.write.exception()  # it may be on its way: the purge must come after it

    def compute_now(self, address: Address) -> None:
        """Compute and store one chunk at once (tests, benchmarks)."""
        self.add(address, id="now")
        while self.pending:
            if not self.idle:
                self.advance()
            elif self._writing and self._writing[0].write is not None:
                self._writing[0].write.result()
            self.finished()

    def advance(self) -> None:
        """One step (at most a layer) of the current chunk, or the start of the next."""
        if self._steps is None:
            self._start(self._queue.popleft())
            return
        try:
            next(self._steps)
        except StopIteration as end:
            self._store_current(end.value)

    def finished(self) -> list[PrecomputedEvent]:
        """News since the last call: chunks stored, found present, or failed."""
        events = []
        for task in [t for t in self._writing if t.write is None or t.write.done()]:
            self._writing.remove(task)
            event = self._event(task)
            self.counts[event.status] += 1
            if task.id is not None:
                events.append(event)
        return events

    def fail_current(self, error: Exception) -> None:
        """The engine caught `error` in `advance`: report it and go on with the next chunk."""
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
            self._finish(task)  # write stays None: present
            return
        self._steps = compute_chunk(self._adapter, task.address)

    def _store_current(self, computed: ComputedChunk) -> None:
        task, self._current, self._steps = self._current, None, None
        assert task is not None
        task.bytes = computed.chunk.nbytes
        task.write = self._loader.put(task.address, computed)
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
