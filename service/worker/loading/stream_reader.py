"""Reads chunks in parts, for prompts that start before their chunks are completely loaded. A
chunk is not read twice at a time, and only the next part of a large chunk is requested, so that
requests and documents take turns on the threads."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from kvstore import ReadOutcome, TieredStore
from service.worker.loading.chunk_stream import ChunkStream
from service.worker.loading.estimates import TierEstimates
from service.worker.model.addressing import Address

# The tier that returns whole chunks by reference, so that reading takes no time.
MEMORY = "memory"


Submit = Callable[[Callable[[], Any]], Future[Any]]
"""Runs work on a loader thread."""


class StreamReader:
    """All chunks that are being read now. `merge_prefetch_note` adds what a prefetch of the
    chunk took to the outcome of a read."""

    def __init__(
        self,
        store: TieredStore,
        submit: Submit,
        submit_lookup: Submit,
        merge_prefetch_note: Callable[[Address, ReadOutcome], ReadOutcome],
        on_ready: Callable[[], None],
        decode: bool,
    ) -> None:
        self._store = store
        self._submit = submit
        self._submit_lookup = submit_lookup
        self._merge_prefetch_note = merge_prefetch_note
        self._on_ready = on_ready
        self._decode = decode
        self._lock = threading.Lock()
        self._streams: dict[str, ChunkStream] = {}  # being read now, by key
        self._promotes = True
        self._timers = Timers()
        self.estimates = TierEstimates()
        # number of times that a request joined a stream which was already being read
        self.shared = 0

    def find(
        self, addresses: Sequence[Address], then: Callable[[dict[str, str]], None]
    ) -> Future[None]:
        """Look up in which tiers these chunks are, and call `then` with the fastest tier by key:
        on a loader thread, unless all are in memory, where handing over takes longer than
        looking."""
        keys = {address.key for address in addresses}
        held = self._store.locate(keys, memory_only=True)
        if len(held) < len(keys):
            return self._submit_lookup(lambda: then(self._store.locate(keys)))
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
            self._submit(lambda: self._advance(stream, 0))
        return stream

    def leave(self, stream: ChunkStream) -> None:
        """End one user's use of the stream; without users it is not read further."""
        # A chunk that was read in parts is not in the memory tier: reading it as a whole puts it
        # there, for later requests.
        with self._lock:
            stream.users -= 1
            promote = stream.users == 0 and stream.complete and len(stream.parts) > 1
        if promote and self._promotes:
            self._submit(lambda: self._promote(stream.address))

    def within(self, awaited: Future[None], seconds: float) -> Future[None]:
        """Return a future that is done with `awaited` or after `seconds`; both wake the engine."""
        either: Future[None] = Future()

        def finish() -> None:
            with self._lock:
                if either.done():
                    return
                either.set_result(None)
            self._on_ready()

        self._timers.after(seconds, finish)
        awaited.add_done_callback(lambda _: finish())
        return either

    def close(self) -> None:
        """End the timers' thread."""
        self._timers.close()

    def bytes_left(self) -> dict[str, float]:
        """Return bytes still to be read of all streams, by tier."""
        with self._lock:
            streams = list(self._streams.values())
        left: dict[str, float] = {}
        for stream in streams:
            if stream.tier is not None:
                left[stream.tier] = left.get(stream.tier, 0.0) + stream.bytes_left
        return left

    def read(self, address: Address, tier: str | None = None) -> ReadOutcome:
        """Read the whole chunk on the calling thread, from where `find` found it."""
        started = time.monotonic()
        outcome = self._store.read(address.key, address.spec, address.owner, tier=tier)
        self._learn(outcome.tier, outcome.nbytes, started)
        return outcome

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
                outcome = self._store.read_blocks(
                    address.key, wanted_blocks, address.spec, tier=stream.tier
                )
                self._learn(outcome.tier, outcome.nbytes, started)
                stream.part(number, outcome)
            if not stream.done:
                with self._lock:
                    stream.turn_bytes = self._turn_bytes(stream)
                self._submit(lambda: self._advance(stream, number + 1))

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
        self._promotes = self._store.locate([address.key]).get(address.key) == MEMORY


NEVER = float("inf")


class Timers:
    """Delayed calls on one thread, which starts with the first `after`; for several threads.
    Waits nearly always end early: calls are not cancelled but do nothing when their time comes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._wakes_at = NEVER
        self._thread: threading.Thread | None = None
        self._closed = False

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call `call` after so many seconds; it must be short and must not raise."""
        when = time.monotonic() + seconds
        with self._changed:
            heapq.heappush(self._waiting, (when, next(self._numbers), call))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)
                self._thread.start()
            elif when < self._wakes_at:
                self._changed.notify()

    def close(self) -> None:
        """End the thread; calls that are still waiting are dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closed:
                self._wakes_at = self._waiting[0][0] if self._waiting else NEVER
                left = self._wakes_at - time.monotonic()
                if left <= 0:
                    return heapq.heappop(self._waiting)[2]
                self._changed.wait(None if left == NEVER else left)
            return None
