"""The queue of chunks that are computed and stored while no request needs the engine. Chunks
that stand behind the same parts are computed together, as many as fill a tile of rows. A chunk
that is stored without wanted extra tensors is computed again, and only these are added."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from kvstitch.service.messages.replies import Precomputed
from kvstitch.service.worker.forward.chunk_prefill import ChunkPrefill, ComputedChunk
from kvstitch.service.worker.loading.loader import Loader
from kvstitch.service.worker.loading.segment_load import Load
from kvstitch.service.worker.methods.layer_view import ChunkExtra
from kvstitch.service.worker.model.addressing import Address
from kvstitch.service.worker.steps import Steps

# Nothing more is computed while so many chunks and tiles of rows are not yet written; bounds memory
# when the disk is slow.
MAX_UNWRITTEN = 4
MAX_UNWRITTEN_TILES = 2
# Most purged keys that are remembered. They are, because a prompt that started before its document
# was deleted must not store the chunk again.
MAX_PURGED = 100_000
# Most writes of chunks that are remembered, for requests that came while these were computed.
MAX_WRITES = 1024


@dataclass
class Task:
    """One chunk to compute and store."""

    address: Address
    id: str | None
    chunk_id: int
    extra: ChunkExtra | None = None
    started_at: float = 0.0
    write: Future[bool] | None = None
    bytes: int = 0
    seconds: float = 0.0
    alone: bool = False

    @property
    def kind(self) -> tuple[ChunkExtra | None, str, list[list[str]]]:
        """Extra tensors, LoRA adapter, and what the chunk stands behind; alike for those
        together."""
        behind = [[part.key for part in parts] for parts in self.address.all_parts]
        return self.extra, self.address.lora, behind


class PrecomputeQueue:
    """The queue; `advance` runs one step of the computation of some chunks."""

    def __init__(
        self, chunks: ChunkPrefill, loader: Loader, *, extra: ChunkExtra | None = None
    ) -> None:
        self._chunks = chunks
        self._loader = loader
        self._extra = extra
        self._queue: deque[Task] = deque()
        self._purged: OrderedDict[str, None] = OrderedDict()
        self._current: list[Task] = []
        self._steps: Steps[list[ComputedChunk]] | None = None
        self._writing: list[Task] = []
        self._writes: OrderedDict[str, Future[bool]] = OrderedDict()
        # number of finished tasks by outcome: stored, present or failed
        self.counts = {"stored": 0, "present": 0, "failed": 0}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute right now (writes may still be running)."""
        if self._steps is not None:
            return False
        return not self._queue or self._full

    @property
    def _full(self) -> bool:
        """Whether too much waits to be written."""
        rows = sum(task.address.spec.tokens for task in self._writing)
        tiles = rows / self._chunks.rows_together
        return len(self._writing) >= MAX_UNWRITTEN and tiles >= MAX_UNWRITTEN_TILES

    @property
    def pending(self) -> int:
        """Number of tasks that are not finished."""
        return len(self._queue) + len(self._writing) + len(self._current)

    def add(
        self,
        address: Address,
        *,
        id: str | None = None,
        chunk_id: int = -1,
        extra: ChunkExtra | None = None,
    ) -> None:
        """Add a chunk, perhaps with extra tensors; for a write-back (without `id`) only if it is
        neither queued nor purged."""
        if id is None:
            waiting = (*self._queue, *self._current)
            if address.key in self._purged or any(
                task.id is None and task.address.key == address.key for task in waiting
            ):
                return
        else:
            self._purged.pop(address.key, None)
        self._queue.append(Task(address, id, chunk_id, extra or self._extra))

    def add_missed(self, loads: Iterable[Load | None]) -> None:
        """Add the chunks that a prompt did not find, or found damaged."""
        for load in loads:
            if load is not None and load.missed:
                self.add(load.address, extra=load.extra)

    def store(self, address: Address, computed: ComputedChunk) -> None:
        """Store a chunk that a request has computed, unless the chunk was purged meanwhile."""
        if address.key in self._purged:
            return
        task = Task(address, None, -1, bytes=computed.chunk.nbytes, started_at=time.monotonic())
        task.write = self._write(address, computed)
        self._writing.append(task)

    def write_of(self, key: str) -> Future[bool] | None:
        """Return the write of a chunk that was computed here lately; None if it was not."""
        return self._writes.get(key)

    def _write(self, address: Address, computed: ComputedChunk) -> Future[bool]:
        write = self._writes[address.key] = self._loader.put(address, computed)
        self._writes.move_to_end(address.key)
        while len(self._writes) > MAX_WRITES:
            self._writes.popitem(last=False)
        return write

    def forget(self, keys: Collection[str], texts: Collection[tuple[int, ...]] = ()) -> None:
        """Drop chunks and kept prefixes of these texts that are about to be purged, and wait for
        writes of them. Those of precompute calls end as if they were present: a caller purges
        none that it waits for, so the call was given up or another gateway has deleted their
        document."""
        for ids in texts:
            self._chunks.forget(ids)
        for key in keys:
            self._writes.pop(key, None)
            self._purged[key] = None
            self._purged.move_to_end(key)
        while len(self._purged) > MAX_PURGED:
            self._purged.popitem(last=False)
        gone = [t for t in (*self._queue, *self._current) if t.address.key in keys]
        self._keep(lambda task: task.address.key not in keys)
        for task in self._writing:
            if task.write is not None and task.address.key in keys:
                task.write.exception()  # waits: the purge must come after a write that has started
        for task in gone:
            if task.id is not None:
                task.started_at = task.started_at or time.monotonic()
                self._writing.append(task)

    def forget_all(self) -> None:
        """Drop all write-backs, because what was deleted meanwhile is not known."""
        self._chunks.forget_all()
        self._writes.clear()
        self._keep(lambda task: task.id is not None)
        for task in self._writing:
            if task.write is not None:
                task.write.exception()  # waits: what is dropped next must hold all that was written

    def cancel(self, ids: Collection[str]) -> None:
        """Drop the chunks of precompute calls that were given up."""
        self._keep(lambda task: task.id not in ids)

    def _keep(self, wanted: Callable[[Task], bool]) -> None:
        """Drop all tasks but the wanted ones, unless they are being written."""
        self._queue = deque(task for task in self._queue if wanted(task))
        if not all(map(wanted, self._current)):
            if self._steps is not None:
                self._steps.close()
            self._queue.extendleft(task for task in reversed(self._current) if wanted(task))
            self._current, self._steps = [], None

    def advance(self) -> None:
        """Run one step (at most a layer) of the current chunks, or start the next ones."""
        if self._steps is None:
            self._start()
            return
        try:
            next(self._steps)
        except StopIteration as end:
            self._store_current(end.value)

    def finished(self) -> list[Precomputed]:
        """Return the replies to the tasks of precompute calls that finished since the last call."""
        replies = []
        for task in [t for t in self._writing if t.write is None or t.write.done()]:
            self._writing.remove(task)
            status, message = "present", ""
            if task.write is not None:
                error = task.write.exception()
                status, message = ("stored", "") if error is None else ("failed", str(error))
            self.counts[status] += 1
            if task.id is not None:
                seconds = task.seconds + time.monotonic() - task.started_at
                replies.append(
                    Precomputed(task.id, task.chunk_id, status, task.bytes, seconds, message)
                )
        return replies

    def fail_current(self, error: Exception) -> None:
        """Report an error that `advance` raised, and drop the current chunk; of several chunks
        each is tried again by itself."""
        tasks, self._current, self._steps = self._current, [], None
        if len(tasks) > 1:
            for task in tasks:
                task.alone = True
            self._queue.extendleft(reversed(tasks))
            return
        for task in tasks:
            task.write = Future()
            task.write.set_exception(error)
            self._writing.append(task)

    def _start(self) -> None:
        """Start the next chunk, with others of the queue that stand behind the same parts."""
        taken = self._take()
        addresses = [task.address for task in taken]
        stored = self._loader.complete(addresses, taken[0].extra)
        missing: list[Task] = []
        for task in taken:
            task.started_at = time.monotonic()
            # Without `write`: the chunk was present.
            (self._writing if task.address.key in stored else missing).append(task)
        self._current = missing
        if missing:
            addresses = [task.address for task in missing]
            self._steps = self._chunks.compute_together(addresses, extra=missing[0].extra)

    def _take(self) -> list[Task]:
        """Take from the queue what is computed together next."""
        first, *others = self._queue
        if first.alone:
            return [self._queue.popleft()]
        rows, kind = first.address.spec.tokens, first.kind
        together, later = [first], []
        for task in others:
            more = task.address.spec.tokens
            fits = rows + more <= self._chunks.rows_together and not task.alone
            if fits and task.kind == kind:
                together.append(task)
                rows += more
            else:
                later.append(task)
        self._queue = deque(later)
        return together

    def _store_current(self, computed: list[ComputedChunk]) -> None:
        tasks, self._current, self._steps = self._current, [], None
        now, flops = time.monotonic(), sum(each.flops for each in computed)
        for task, each in zip(tasks, computed, strict=True):
            task.bytes = each.chunk.nbytes
            task.seconds = (now - task.started_at) * each.flops / flops
            task.started_at = now
            task.write = self._write(task.address, each)
            self._writing.append(task)
