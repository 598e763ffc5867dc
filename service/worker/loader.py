"""Brings chunks out of the store on a few threads, so that the engine never waits for a disk or a
socket. Knows no model and no scheduling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from kvstore import EncodedChunk, ReadOutcome, TieredStore
from service.worker.addressing import Address

T = TypeVar("T")


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

    def start(self) -> None:
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="kv-loader")

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def load(self, address: Address) -> Future[ReadOutcome]:
        """Read one chunk; bad or missing data is an outcome, never an exception."""
        return self._run(lambda: self._store.read(address.key, address.spec))

    def put(self, address: Address, chunk: EncodedChunk) -> Future[bool]:
        return self._run(lambda: self._store.put(address.key, chunk))

    def prefetch(self, addresses: Iterable[Address]) -> None:
        """Read and forget: what is found moves into the memory tier."""
        for address in addresses:
            self.load(address)

    def _run(self, work: Callable[[], T]) -> Future[T]:
        assert self._pool is not None, "start the loader first"
        future = self._pool.submit(work)
        future.add_done_callback(lambda _: self._on_ready())
        return future
