"""Reads chunks from the store and writes them on a few threads, so the engine never waits for a
disk or a socket.

A chunk is not read twice at a time. Of a large one only the next part is requested, so that
requests and documents take turns on the threads, and a prompt starts before its chunks are loaded.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from kvstitch.kvstore import EncodedChunk, ReadOutcome, TieredStore
from kvstitch.service.worker.forward.chunk_prefill import ComputedChunk
from kvstitch.service.worker.loading.chunk_stream import ChunkStream, parts_of
from kvstitch.service.worker.loading.cost_model import TierEstimates
from kvstitch.service.worker.methods.layer_view import ChunkExtra
from kvstitch.service.worker.model.addressing import Address

T = TypeVar("T")

# The tier that returns whole chunks by reference, so that reading takes no time.
MEMORY = "memory"
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
        self._decode = decode
        self._pool: ThreadPoolExecutor | None = None
        self._lookups: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._notes: OrderedDict[str, tuple[float, ReadOutcome]] = OrderedDict()
        self._streams: dict[str, ChunkStream] = {}  # being read now, by key
        self._promotes = True
        self.estimates = TierEstimates()
        # number of times that a request joined a stream which was already being read
        self.shared = 0

    def start(self) -> None:
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

    # -- chunks that are read in parts ------------------------------------------------------------

    def find(
        self, addresses: Sequence[Address], then: Callable[[dict[str, str]], None]
    ) -> Future[None]:
        """Look up in which tiers these chunks are, and call `then` with the fastest tier by key:
        on a loader thread, unless all are in memory, where handing over takes longer than
        looking."""
        keys = {address.key for address in addresses}
        held = self.store.locate(keys, memory_only=True)
        if len(held) < len(keys):
            return self.run(lambda: then(self.store.locate(keys)), lookup=True)
        found: Future[None] = Future()
        try:
            then(held)
        except Exception as error:
            found.set_exception(error)
        else:
            found.set_result(None)
        return found

    def join(self, address: Address, tier: str | None) -> ChunkStream:
        """Return the stream of a chunk, which every user must `leave` when done: the one that is
        being read already, or a new one. From the tier memory it is read at once, on the calling
        thread."""
        with self._lock:
            stream = self._streams.get(address.key)
            already_read = stream is not None
            if stream is None:
                stream = ChunkStream(address, None if tier == MEMORY else tier, decode=self._decode)
                self._streams[address.key] = stream
                stream.turn_bytes = self._turn_bytes(stream)
            stream.users += 1
            self.shared += already_read
        if not already_read and tier == MEMORY:
            self._read_whole(stream)
        elif not already_read:
            self.run(lambda: self._advance(stream, 0))
        return stream

    def leave(self, stream: ChunkStream) -> None:
        """End one user's use of the stream; without users it is not read further."""
        # A chunk that was read in parts is not in the memory tier: reading it as a whole puts it
        # there, for later requests.
        with self._lock:
            stream.users -= 1
            promote = stream.users == 0 and stream.complete and len(stream.parts) > 1
        if promote and self._promotes:
            self.run(lambda: self._promote(stream.address))

    def bytes_left(self) -> dict[str, float]:
        """Return bytes still to be read of all streams, by tier."""
        with self._lock:
            streams = list(self._streams.values())
        left: dict[str, float] = {}
        for stream in streams:
            if stream.tier is not None:
                left[stream.tier] = left.get(stream.tier, 0.0) + stream.bytes_left
        return left

    def _advance(self, stream: ChunkStream, number: int) -> None:
        """Read part `number`, then submit the read of the next, behind those of other chunks."""
        with self._lock:
            wanted = stream.users > 0
            if not wanted:
                self._forget(stream)
        if not wanted:
            stream.lose()
        elif len(stream.parts) == 1:
            self._read_whole(stream)
        else:
            with self._reading(stream):
                address, started = stream.address, time.monotonic()
                wanted_blocks = dict.fromkeys(stream.parts[number], range(address.spec.blocks))
                outcome = self.store.read_blocks(
                    address.key, wanted_blocks, address.spec, tier=stream.tier
                )
                self._learn(outcome.tier, outcome.nbytes, started)
                stream.part(number, outcome)
            if not stream.done:
                with self._lock:
                    stream.turn_bytes = self._turn_bytes(stream)
                self.run(lambda: self._advance(stream, number + 1))

    def _read_whole(self, stream: ChunkStream) -> None:
        with self._reading(stream):
            outcome = self.read(stream.address, stream.tier)
            stream.whole(self._merge_prefetch_note(stream.address, outcome))

    @contextmanager
    def _reading(self, stream: ChunkStream) -> Iterator[None]:
        """Lose the stream if reading fails, and forget it when nothing more will arrive."""
        try:
            yield
        except BaseException:
            stream.lose()
            raise
        finally:
            if stream.done:
                with self._lock:
                    self._forget(stream)
                self._on_ready()

    def _learn(self, tier: str | None, nbytes: int, started: float) -> None:
        if tier is not None:
            self.estimates.add(tier, nbytes, started, time.monotonic())

    def _turn_bytes(self, stream: ChunkStream) -> float:
        """Return bytes of the next parts of all streams that are read from this stream's tier."""
        return sum(s.next_bytes for s in self._streams.values() if s.tier == stream.tier)

    def _forget(self, stream: ChunkStream) -> None:
        """Remove the stream; the next request for the chunk starts a new one."""
        if self._streams.get(stream.address.key) is stream:
            del self._streams[stream.address.key]

    def _promote(self, address: Address) -> None:
        self.read(address)
        # Without a memory tier, promoting would only read every chunk twice.
        self._promotes = self.store.locate([address.key]).get(address.key) == MEMORY

    # -- chunks that are read or written at once --------------------------------------------------

    def read(self, address: Address, tier: str | None = None) -> ReadOutcome:
        """Read the whole chunk on the calling thread, from where `find` found it."""
        started = time.monotonic()
        outcome = self.store.read(address.key, address.spec, address.owner, tier=tier)
        self._learn(outcome.tier, outcome.nbytes, started)
        return outcome

    def load_chunk(self, address: Address) -> Future[EncodedChunk | None]:
        """Read a whole chunk; None if it is not stored."""
        return self.run(lambda: self.read(address).chunk)

    def put(self, address: Address, computed: ComputedChunk) -> Future[bool]:
        """Store a chunk, and what was computed beside it."""

        def work() -> bool:
            stored = bool(self.store.contains([address.key]))
            if not stored:
                stored = self.store.put(address.key, computed.chunk, address.owner)
            if (extra := computed.extra) is None:
                return stored
            kept = self.store.put_extra(
                address.key, extra.name, extra.version, computed.extra_tensors, address.owner
            )
            return kept and stored

        return self.run(work)

    def complete(self, addresses: Sequence[Address], extra: ChunkExtra | None) -> set[str]:
        """Return the keys of those chunks that are stored with what is wanted beside them; reads
        here."""
        keys = self.store.contains({address.key for address in addresses})
        if extra is None:
            return keys
        read = self.store.read_extra
        return {key for key in keys if read(key, extra.name, extra.version) is not None}

    def prefetch(self, addresses: Iterable[Address]) -> None:
        """Read chunks before their request comes; the store moves them into the memory tier."""
        for address in addresses:
            self.run(lambda address=address: self._read_ahead(address))  # type: ignore[misc]

    def _read_ahead(self, address: Address) -> None:
        tier = self.store.locate([address.key]).get(address.key)
        if tier in (None, MEMORY) or len(parts_of(address)) == 1:
            self._add_note(address, self.read(address))
            return
        stream = self.join(address, tier)
        stream.part_futures[-1].add_done_callback(lambda _: self._finish_read_ahead(stream))

    def _finish_read_ahead(self, stream: ChunkStream) -> None:
        # With more users, a request has joined the stream and reports the read itself.
        if stream.users == 1:
            problems = tuple(stream.problems)
            self._add_note(
                stream.address,
                ReadOutcome(None, stream.tier, stream.nbytes, stream.seconds, problems),
            )
        self.leave(stream)

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

    def run(self, work: Callable[[], T], *, lookup: bool = False) -> Future[T]:
        """Do some work on a loader thread."""
        pool = self._lookups if lookup else self._pool
        assert pool is not None, "start the loader first"
        future = pool.submit(work)
        future.add_done_callback(lambda _: self._on_ready())
        return future
