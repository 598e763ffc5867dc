"""Reads chunks for prompts that start before they are there. Knows no model and no scheduling.

A chunk that somebody is reading already is not read twice. Of a large one only the next part is
ever asked for, so that requests and documents take turns on the threads, and layers arrive about
in the order in which they are needed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from kvstore import ReadOutcome, TieredStore
from service.worker.loading.chunk_stream import ChunkStream
from service.worker.loading.estimates import TierEstimates
from service.worker.loading.timers import Timers
from service.worker.model.addressing import Address

# The tier that whole chunks are handed out of by reference, in no time.
MEMORY = "memory"


class Submit(Protocol):
    """Runs work on a loader thread."""

    def __call__(self, work: Callable[[], Any]) -> Future[Any]: ...


class StreamReader:
    """Streams under way. `submit` and `look` run reads and look-ups on threads; `told` completes an
    outcome by what a prefetch of the chunk found; `on_ready` wakes the engine."""

    def __init__(
        self,
        store: TieredStore,
        submit: Submit,
        look: Submit,
        told: Callable[[Address, ReadOutcome], ReadOutcome],
        on_ready: Callable[[], None],
        decode: bool,
    ) -> None:
        self._store = store
        self._submit = submit
        self._look = look
        self._merge_prefetch_note = told
        self._on_ready = on_ready
        self._decode = decode
        self._lock = threading.Lock()
        self._streams: dict[str, ChunkStream] = {}  # being read now, by key
        self._promotes = True
        self._timers = Timers()
        self.estimates = TierEstimates()
        self.shared = 0

    def find(
        self, addresses: Sequence[Address], then: Callable[[dict[str, str]], None]
    ) -> Future[None]:
        """Look where these chunks are; `then` gets key to fastest tier, on a loader thread. A key
        that no tier admits to is absent."""
        return self._look(lambda: then(self._store.locate({a.key for a in addresses})))

    def join(self, address: Address, tier: str | None) -> ChunkStream:
        """The chunk's stream if somebody reads it now, else a new one. `leave` it when done.

        tier: where `find` saw it. From memory it is read at once, on the calling thread.
        """
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
        """One user less. What nobody wants is not read on; what was read in parts, which leaves
        nothing in the memory tier, is read whole now for the requests to come."""
        with self._lock:
            stream.users -= 1
            promote = stream.users == 0 and stream.complete and len(stream.parts) > 1
        if promote and self._promotes:
            self._submit(lambda: self._promote(stream.address))

    def within(self, awaited: Future[None], seconds: float) -> Future[None]:
        """Done when `awaited` is, or after `seconds`; wakes the engine either way."""
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
        """Nobody waits any more."""
        self._timers.close()

    def bytes_left(self) -> dict[str, float]:
        """By tier: of everything being read."""
        with self._lock:
            streams = list(self._streams.values())
        left: dict[str, float] = {}
        for stream in streams:
            if stream.tier is not None:
                left[stream.tier] = left.get(stream.tier, 0.0) + stream.bytes_left
        return left

    def read(self, address: Address) -> ReadOutcome:
        """The whole chunk, now, on the calling thread."""
        started = time.monotonic()
        outcome = self._store.read(address.key, address.spec)
        self._learn(outcome.tier, outcome.nbytes, started)
        return outcome

    def _advance(self, stream: ChunkStream, number: int) -> None:
        """Read part `number`, then ask for the next, behind what others ask for."""
        with self._lock:
            wanted = stream.users > 0
            if not wanted:
                self._forget(stream)
        if not wanted:
            stream.lose()
        elif len(stream.parts) == 1:
            self._read_whole(stream)
        else:
            self._read_part(stream, number)
            if not stream.done:
                with self._lock:
                    stream.turn_bytes = self._turn_bytes(stream)
                self._submit(lambda: self._advance(stream, number + 1))

    def _read_part(self, stream: ChunkStream, number: int) -> None:
        address, started = stream.address, time.monotonic()
        wanted = dict.fromkeys(stream.parts[number], range(address.spec.blocks))
        try:
            outcome = self._store.read_blocks(address.key, wanted, address.spec)
            self._learn(outcome.tier, outcome.nbytes, started)
            stream.part(number, outcome)
        except BaseException:
            stream.lose()
            raise
        finally:
            self._settle(stream)

    def _read_whole(self, stream: ChunkStream) -> None:
        address = stream.address
        try:
            stream.whole(self._merge_prefetch_note(address, self.read(address)))
        except BaseException:
            stream.lose()
            raise
        finally:
            self._settle(stream)

    def _learn(self, tier: str | None, nbytes: int, started: float) -> None:
        if tier is not None:
            self.estimates.add(tier, nbytes, started, time.monotonic())

    def _settle(self, stream: ChunkStream) -> None:
        if stream.done:
            with self._lock:
                self._forget(stream)
            self._on_ready()

    def _turn_bytes(self, stream: ChunkStream) -> float:
        """Of the next parts of all that is read from its tier."""
        return sum(s.next_bytes for s in self._streams.values() if s.tier == stream.tier)

    def _forget(self, stream: ChunkStream) -> None:
        """Whoever wants the chunk from now on reads it anew."""
        if self._streams.get(stream.address.key) is stream:
            del self._streams[stream.address.key]

    def _promote(self, address: Address) -> None:
        self.read(address)
        # A store without a memory tier would be read twice for nothing.
        self._promotes = self._store.locate([address.key]).get(address.key) == MEMORY
