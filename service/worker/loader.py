"""Brings chunks out of the store on a few threads, so that the engine never waits for a disk or a
socket. Knows no model and no scheduling."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from kvstore import EncodedChunk, ReadOutcome, TieredStore
from service.worker.addressing import Address

T = TypeVar("T")

# A prefetch is followed by its request at once; what it found is old news after this.
NOTE_S = 10.0
MAX_NOTES = 1024


class Loader:
    """Threads around a `TieredStore`. `on_ready` is called (on a loader thread) after every load
    or store, to wake the engine."""

    def __init__(
        self, store: TieredStore, *, threads: int, on_ready: Callable[[], None] = lambda: None
    ) -> None:
        self._store = store
        self._threads = threads
        self._on_ready = on_ready
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._notes: OrderedDict[str, tuple[float, ReadOutcome]] = OrderedDict()

    def start(self) -> None:
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="kv-loader")

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def load(self, address: Address) -> Future[ReadOutcome]:
        """Read one chunk; bad or missing data is an outcome, never an exception.

        What a prefetch moments ago found (the tier it came from, a copy that was bad) is part of
        the outcome: the request it was made for reports it.
        """
        return self._run(lambda: self._told(address, self._store.read(address.key, address.spec)))

    def put(self, address: Address, chunk: EncodedChunk) -> Future[bool]:
        return self._run(lambda: self._store.put(address.key, chunk))

    def prefetch(self, addresses: Iterable[Address]) -> None:
        """Read ahead of a request: what is found moves into the memory tier."""
        for address in addresses:
            self._run(lambda address=address: self._read_ahead(address))  # type: ignore[misc]

    def _read_ahead(self, address: Address) -> None:
        outcome = self._store.read(address.key, address.spec)
        # Without the chunk: a note must not hold memory that no tier accounts for.
        note = replace(outcome, chunk=None)
        with self._lock:
            self._notes[address.key] = (time.monotonic(), note)
            while len(self._notes) > MAX_NOTES:
                self._notes.popitem(last=False)

    def _told(self, address: Address, outcome: ReadOutcome) -> ReadOutcome:
        with self._lock:
            at, note = self._notes.pop(address.key, (0.0, None))
        if note is None or time.monotonic() - at > NOTE_S:
            return outcome
        seconds = note.seconds + outcome.seconds
        tier = note.tier if outcome.chunk is not None and note.tier else outcome.tier
        problems = tuple(dict.fromkeys((*note.problems, *outcome.problems)))
        return replace(outcome, tier=tier, seconds=seconds, problems=problems)

    def _run(self, work: Callable[[], T]) -> Future[T]:
        assert self._pool is not None, "start the loader first"
        future = self._pool.submit(work)
        future.add_done_callback(lambda _: self._on_ready())
        return future
