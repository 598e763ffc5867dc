"""Tells gateways how the worker is: counters for all, cached chunks and load for those that
asked. Its own thread sends them, so that they go out while the engine computes."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from kvstitch.service.messages import wire
from kvstitch.service.messages.replies import Holdings, Ready, Stats, WorkerLoad
from kvstitch.service.shared.resources import uptime
from kvstitch.service.worker.engine.engine import Engine
from kvstitch.service.worker.server.counters import (
    LoadMeter,
    engine_values,
    own_values,
    store_values,
)
from kvstitch.service.worker.server.link import Link

# Most names that are remembered, those used last. Chunks beyond are not reported.
MAX_NAMES = 500_000


@dataclass(frozen=True)
class Changes:
    """What changed since the last report."""

    added: list[bytes]
    removed: list[bytes]
    snapshot: bool

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.snapshot)


class CachedChunks:
    """The chunks that the memory tier holds, for gateways that route by them; for several threads.

    The tier knows chunks by key, gateways by name (`ChunkNames`), messages bring both together;
    names are remembered only after a gateway has asked for cached chunks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: set[str] = set()
        self._names: OrderedDict[str, bytes] = OrderedDict()
        self._reported: dict[str, bytes] = {}  # what gateways believe to be cached
        self._changed: set[str] = set()
        self._on = False
        self._snapshot = False

    @property
    def reported(self) -> bool:
        """Whether a gateway has asked for cached chunks."""
        return self._on

    def report_all(self) -> None:
        """Make the next changes a snapshot."""
        with self._lock:
            self._on = self._snapshot = True

    def changed(self, key: str, cached: bool) -> None:
        """Note that the memory tier holds a chunk from now on, or no longer."""
        with self._lock:
            if cached:
                self._keys.add(key)
            else:
                self._keys.discard(key)
            if self._on:
                self._changed.add(key)

    def name(self, names: Iterable[tuple[str, bytes]]) -> None:
        """Remember the names of chunks, given with their keys."""
        with self._lock:
            for key, name in names:
                if key not in self._names and key in self._keys:
                    self._changed.add(key)
                self._names[key] = name
                self._names.move_to_end(key)
            while len(self._names) > MAX_NAMES:
                self._names.popitem(last=False)

    def changes(self) -> Changes:
        """Return what changed since the last call; it is false if nothing did."""
        with self._lock:
            snapshot, self._snapshot = self._snapshot, False
            if snapshot:
                self._reported.clear()
            looked_at = self._keys if snapshot else self._changed
            added: list[bytes] = []
            removed: list[bytes] = []
            for key in looked_at:
                if key not in self._keys:
                    if (name := self._reported.pop(key, None)) is not None:
                        removed.append(name)
                elif key not in self._reported and (name := self._names.get(key)) is not None:
                    self._reported[key] = name
                    added.append(name)
            self._changed.clear()
            return Changes(added, removed, snapshot)


log = logging.getLogger("kvstitch.worker")

STATS_INTERVAL_S = 1.0
CACHED_INTERVAL_S = 0.1


class Reporter:
    """Reports to the gateways of one worker."""

    def __init__(self, engine: Engine, cached: CachedChunks, ready: Ready, link: Link) -> None:
        self._engine = engine
        self.cached = cached
        self.ready = ready
        self._link = link
        self._gateways: set[bytes] = set()
        self._meter = LoadMeter(engine)
        self._load = self._meter.measure()
        self._measured_at = time.monotonic()
        self._received: dict[bytes, int] = {}  # requests, by gateway that asked for cached chunks
        self._counted = dict(self._received)  # those that are in `_load`, or answered
        self._sent = 0  # messages about cached chunks
        self.draining = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join(timeout=STATS_INTERVAL_S * 5)

    def add(self, gateway: bytes) -> None:
        self._gateways.add(gateway)

    def remove(self, gateway: bytes) -> None:
        """Report to a gateway no longer."""
        self._gateways.discard(gateway)
        self._received.pop(gateway, None)
        self._counted = dict(self._received)

    def report_cached(self, gateway: bytes) -> None:
        """Tell a gateway of cached chunks from now on, of all of them first."""
        self._received.setdefault(gateway, 0)
        self._counted = dict(self._received)
        self.cached.report_all()

    def received(self, gateway: bytes) -> None:
        """Count a request of a gateway, which compares the number with those it has sent."""
        if gateway in self._received:
            self._received[gateway] += 1

    def measure(self) -> None:
        """Measure the load now and then, and before the engine goes to sleep."""
        now = time.monotonic()
        interval_s = CACHED_INTERVAL_S / 2 if self.cached.reported else STATS_INTERVAL_S
        if now - self._measured_at >= interval_s or self._engine.idle:
            self._load, self._counted = self._meter.measure(), dict(self._received)
            self._measured_at = now

    def _run(self) -> None:
        due = time.monotonic() + STATS_INTERVAL_S
        last: WorkerLoad | None = None
        while not self._stopping.wait(
            CACHED_INTERVAL_S if self.cached.reported else STATS_INTERVAL_S
        ):
            if self.cached.reported:
                last = self._send_cached(last)
            if time.monotonic() >= due - CACHED_INTERVAL_S / 2 or not self.cached.reported:
                self.send_counters()
                due = time.monotonic() + STATS_INTERVAL_S

    def _send_cached(self, last: WorkerLoad | None) -> WorkerLoad:
        """Send what changed in the memory tier, or in the load since `last`; return the load."""
        counted, load = self._counted, self._load
        changes = self.cached.changes()
        if changes or load != last:
            self._sent += 1
            for gateway, count in counted.items():
                message = Holdings(
                    self._sent, changes.added, changes.removed, changes.snapshot, count, load
                )
                self._link.send(gateway, wire.encode(message))
        return load

    def send_counters(self, *, gone: bool = False) -> None:
        # Read before the counters: whoever gets them knows the worker was alive at this moment.
        clock = uptime()
        started = time.monotonic()
        engine, scheduler = self._engine, self._engine.scheduler
        values = store_values(self._engine.store.stats()) + engine_values(engine)
        values += own_values(self.ready, self._load.backlog_s)
        stats = Stats(
            values=values,
            running=len(scheduler.running) + len(scheduler.prefilling),
            waiting=len(scheduler.waiting),
            pool_free=engine.pool_free_share,
            draining=self.draining,
            gone=gone,
            clock=clock,
        )
        for gateway in list(self._gateways):
            self._link.send(gateway, wire.encode(stats))
        if (took := time.monotonic() - started) > STATS_INTERVAL_S:
            log.warning("collecting counters took %.1f s: a tier answers slowly", took)
