"""Reads chunks from the store and writes them on a few threads, so the engine never waits for a
disk or a socket."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from kvstore import BlocksOutcome, EncodedChunk, ReadOutcome, TieredStore
from service.worker.forward.chunk_prefill import ComputedChunk
from service.worker.loading.chunk_stream import ChunkStream, parts_of
from service.worker.loading.segment_load import DocumentEnds
from service.worker.loading.stream_reader import MEMORY, StreamReader
from service.worker.methods.sparse import sketch
from service.worker.methods.sparse.sketch import BlockGrid
from service.worker.model.addressing import Address

T = TypeVar("T")
BlockSet = Mapping[int, Collection[int]]
"""Block numbers by layer."""

# Seconds for which the outcome of a prefetch is remembered; its request normally follows at once.
NOTE_S = 10.0
# Most outcomes of prefetches that are remembered.
MAX_NOTES = 1024
LOOKUP_THREADS = 2


class Loader:
    """Threads around a `TieredStore`. `on_ready` is called on them after every load or store, to
    wake the engine; `decode` says whether chunks that come in parts are decoded on them, or by
    who uses the stream."""

    def __init__(
        self,
        store: TieredStore,
        *,
        threads: int,
        on_ready: Callable[[], None] = lambda: None,
        decode: bool = True,
    ) -> None:
        self.store = store
        self._threads = threads
        self._on_ready = on_ready
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._notes: OrderedDict[str, tuple[float, ReadOutcome]] = OrderedDict()
        self._lookups: ThreadPoolExecutor | None = None
        self.streams = StreamReader(
            store,
            self._run,
            partial(self._run, lookup=True),
            self._merge_prefetch_note,
            on_ready,
            decode,
        )

    def start(self) -> None:
        """Start the threads."""
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="kv-loader")
        # Separate threads, so that stalled reads do not delay look-ups of where chunks are stored.
        self._lookups = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="kv-lookup")

    def close(self) -> None:
        """End the threads after the work that has already started."""
        if self._lookups is not None:
            self._lookups.shutdown(wait=True, cancel_futures=True)
            self._lookups = None
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self.streams.close()

    def load_chunk(self, address: Address) -> Future[EncodedChunk | None]:
        """Read a whole chunk; None if it is not stored."""
        return self._run(lambda: self.streams.read(address).chunk)

    def load_ends(self, address: Address) -> Future[DocumentEnds]:
        """Read a chunk's sketch and its first and last blocks."""
        return self._run(lambda: self._read_ends(address))

    def load_blocks(self, address: Address, blocks: BlockSet) -> Future[BlocksOutcome]:
        """Read these blocks of these layers."""
        return self._run(lambda: self.store.read_blocks(address.key, blocks, address.spec))

    def put(self, address: Address, computed: ComputedChunk) -> Future[bool]:
        """Store a chunk, and its sketch if it has one."""
        return self._run(lambda: self._put(address, computed))

    def is_complete(self, address: Address, *, with_sketch: bool) -> bool:
        """Return whether the chunk and, if asked for, its sketch are stored; reads here."""
        store = self.store
        return bool(store.contains([address.key])) and (
            not with_sketch
            or store.read_extra(address.key, sketch.NAME, sketch.VERSION) is not None
        )

    def _put(self, address: Address, computed: ComputedChunk) -> bool:
        stored = bool(self.store.contains([address.key]))
        if not stored:
            stored = self.store.put(address.key, computed.chunk, address.owner)
        if computed.sketch is None:
            return stored
        tensors = computed.sketch.tensors()
        kept = self.store.put_extra(
            address.key, sketch.NAME, sketch.VERSION, tensors, address.owner
        )
        return kept and stored

    def _read_ends(self, address: Address) -> DocumentEnds:
        started = time.monotonic()
        extra = self.store.read_extra(address.key, sketch.NAME, sketch.VERSION)
        if extra is None:
            return DocumentEnds(None, None, time.monotonic() - started)
        ends = BlockGrid(address.spec.tokens).fixed
        layers = dict.fromkeys(range(address.spec.layers), ends)
        outcome = self.store.read_blocks(address.key, layers, address.spec)
        decoded = sketch.Sketch.of(extra.tensors)
        return DocumentEnds(decoded, outcome, time.monotonic() - started, extra.nbytes)

    def prefetch(self, addresses: Iterable[Address]) -> None:
        """Read chunks before their request comes; the store moves them into the memory tier."""
        for address in addresses:
            self._run(lambda address=address: self._read_ahead(address))  # type: ignore[misc]

    def _read_ahead(self, address: Address) -> None:
        tier = self.store.locate([address.key]).get(address.key)
        if tier in (None, MEMORY) or len(parts_of(address)) == 1:
            self._add_note(address, self.streams.read(address))
            return
        stream = self.streams.join(address, tier)
        stream.part_futures[-1].add_done_callback(lambda _: self._finish_read_ahead(stream))

    def _finish_read_ahead(self, stream: ChunkStream) -> None:
        # With more users, a request has joined the stream and reports the read itself.
        if stream.users == 1:
            problems = tuple(stream.problems)
            self._add_note(
                stream.address,
                ReadOutcome(None, stream.tier, stream.nbytes, stream.seconds, problems),
            )
        self.streams.leave(stream)

    def _add_note(self, address: Address, outcome: ReadOutcome) -> None:
        # Without the chunk, so that the note does not hold memory that no tier accounts for.
        note = replace(outcome, chunk=None)
        with self._lock:
            self._notes[address.key] = (time.monotonic(), note)
            while len(self._notes) > MAX_NOTES:
                self._notes.popitem(last=False)

    def _merge_prefetch_note(self, address: Address, outcome: ReadOutcome) -> ReadOutcome:
        """Add what a prefetch of the chunk took to the outcome of its request's read."""
        with self._lock:
            noted_at, note = self._notes.pop(address.key, (0.0, None))
        if note is None or time.monotonic() - noted_at > NOTE_S:
            return outcome
        seconds = note.seconds + outcome.seconds
        tier = note.tier if outcome.chunk is not None and note.tier else outcome.tier
        problems = tuple(dict.fromkeys((*note.problems, *outcome.problems)))
        return replace(outcome, tier=tier, seconds=seconds, problems=problems)

    def _run(self, work: Callable[[], T], *, lookup: bool = False) -> Future[T]:
        pool = self._lookups if lookup else self._pool
        assert pool is not None, "start the loader first"
        future = pool.submit(work)
        future.add_done_callback(lambda _: self._on_ready())
        return future
