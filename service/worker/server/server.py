"""Puts the engine on a socket: messages in, engine steps, events out as messages.

Three threads: the link moves bytes, the reporter sends counters every second (which is also the
heartbeat), this one runs the engine. Knows no HTTP and no text.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import asdict

import msgspec
import torch

from kvstore import TieredStore
from service import messages as m
from service import wire
from service.errors import KvstitchError
from service.tracing import Span, Tracing
from service.worker.core.request import (
    DoneEvent,
    Event,
    ExplainedEvent,
    FailedEvent,
    PrecomputedEvent,
    Request,
    TokenEvent,
)
from service.worker.engine.engine import Engine
from service.worker.loading.loader import Loader
from service.worker.methods.registry import reads_whole_chunks
from service.worker.model.addressing import Address
from service.worker.server.link import Link, Outlet
from service.worker.server.statistics import engine_values, store_values

log = logging.getLogger("kvstitch.worker")

STATS_EVERY_S = 1.0
FLUSH_S = 10.0

Incoming = tuple[bytes, m.ToWorker, float] | None  # sender, message, when; None only wakes


class Server:
    """Serves one engine at one address until told to stop."""

    def __init__(
        self,
        engine: Engine,
        store: TieredStore,
        loader: Loader,
        ready: m.Ready,
        link: Link,
        tracing: Tracing,
    ) -> None:
        self._engine = engine
        self._store = store
        self._loader = loader
        self._ready = ready
        self._link = link
        self._tracing = tracing
        self._inbox: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        self._owners: dict[str, bytes] = {}  # request or call id → gateway
        self._spans: dict[str, Span] = {}  # request id → what is traced of it
        self._unstored: dict[str, int] = {}  # precompute call → chunks still to report
        self._gateways: set[bytes] = set()
        self._stopping = threading.Event()

    def received(self, identity: bytes, payload: bytes) -> None:
        """Called by the link's thread."""
        arrived = time.monotonic()
        try:
            self._inbox.put((identity, wire.decode_to_worker(payload), arrived))
        except msgspec.DecodeError as error:
            log.warning("a message was not understood and ignored: %s", error)

    def wake(self) -> None:
        """Something outside changed (a load finished): look again."""
        self._inbox.put(None)

    def stop(self) -> None:
        """Finish what runs, then return from `run`. Safe from any thread and signal handler."""
        self._stopping.set()
        self.wake()

    def run(self) -> None:
        """The engine's thread. Returns after `stop`, when no sequence is left."""
        outlet = self._link.outlet()
        reporter = threading.Thread(target=self._report, name="reporter", daemon=True)
        reporter.start()
        try:
            while not (self._stopping.is_set() and self._engine.scheduler.idle):
                self._drain(outlet, block=self._engine.idle)
                self._send(outlet, self._engine.step())
        finally:
            self._stopping.set()
            outlet.close()
            reporter.join(timeout=STATS_EVERY_S * 5)
            self._store.flush(FLUSH_S)

    def _drain(self, outlet: Outlet, *, block: bool) -> None:
        """Handle everything in the inbox; wait for something if there is nothing to compute."""
        try:
            item = self._inbox.get(timeout=0.5) if block else self._inbox.get_nowait()
            while True:
                if item is not None:
                    self._handle(outlet, *item)
                item = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _handle(self, outlet: Outlet, gateway: bytes, message: m.ToWorker, arrived: float) -> None:
        match message:
            case m.Hello():
                self._gateways.add(gateway)
                outlet.send(gateway, wire.encode(self._ready))
            case m.Generate():
                self._owners[message.id] = gateway
                self._spans[message.id] = self._tracing.begin(
                    "kvstitch.generate", message.traceparent
                )
                self._submit(outlet, message, arrived)
            case m.Explain(request):
                self._owners[request.id] = gateway
                self._submit(outlet, request, arrived, explain=True)
            case m.Abort():
                self._engine.abort(message.id, message.reason)
            case m.Prefetch():
                if reads_whole_chunks(message.fusion):
                    found = self._addresses(message)
                    self._loader.prefetch(address for address in found if address is not None)
            case m.Precompute():
                self._precompute(outlet, gateway, message)
            case m.Purge():
                keys = {a.key for a in self._addresses(message)[1:] if a is not None}
                self._engine.background.forget(keys)
                copies = self._store.delete(keys)
                unreached = [name for name in self._store.tier_names if name not in copies]
                outlet.send(gateway, wire.encode(m.Purged(message.id, copies, unreached)))
            case m.AskGate():
                outlet.send(gateway, wire.encode(self._gate(message)))
            case m.Shutdown():
                self.stop()

    def _submit(
        self, outlet: Outlet, message: m.Generate, arrived: float, *, explain: bool = False
    ) -> None:
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        del fields["traceparent"]
        try:
            request = Request(**fields, arrived=arrived)
            self._engine.explain(request) if explain else self._engine.submit(request)
        except KvstitchError as error:
            self._send(outlet, [FailedEvent(message.id, error.code, error.message, error.field)])
        except Exception as error:
            log.error("request %s was refused", message.id, exc_info=error)
            text = f"{type(error).__name__}: {error}"
            self._send(outlet, [FailedEvent(message.id, "worker_fault", text)])

    def _gate(self, message: m.AskGate) -> m.GateStates:
        gate = self._engine.gate
        if gate is None:
            return m.GateStates(message.id, False, [])
        if message.reset is not None:
            gate.reset(message.reset)
        return m.GateStates(message.id, True, gate.states())

    def _precompute(self, outlet: Outlet, gateway: bytes, message: m.Precompute) -> None:
        if message.documents:
            self._owners[message.id] = gateway
            self._unstored[message.id] = len(message.documents)
        system, *documents = self._addresses(message)
        if system is not None:
            self._engine.precompute_queue.add(system)
        for chunk, address in zip(message.documents, documents, strict=True):
            if address is None:
                event = PrecomputedEvent(message.id, chunk.chunk_id, "present", 0, 0.0)
                self._send(outlet, [event])
            else:
                self._engine.precompute_queue.add(address, id=message.id, chunk_id=chunk.chunk_id)

    def _addresses(self, message: m.Prefetch | m.Precompute | m.Purge) -> list[Address | None]:
        return self._engine.admission.addresses(
            message.system, message.documents, message.prefix_mode, message.tenant
        )

    def _send(self, outlet: Outlet, events: list[Event]) -> None:
        """Events as messages to whoever asked; the tokens of a step go as one message each."""
        tokens: dict[bytes, list[m.TokenItem]] = {}
        ends: list[tuple[bytes, m.Message]] = []
        for event in events:
            gateway = self._owners.get(event.id)
            if gateway is None:
                continue
            match event:
                case TokenEvent():
                    tokens.setdefault(gateway, []).append(m.TokenItem(event.id, event.token))
                case DoneEvent():
                    self._spans.pop(event.id).end(event.report.stages, _attributes(event))
                    ends.append((gateway, m.Done(event.id, event.finish_reason, event.report)))
                    del self._owners[event.id]
                case ExplainedEvent():
                    ends.append((gateway, m.Explained(event.id, event.forecast)))
                    del self._owners[event.id]
                case FailedEvent():
                    if (span := self._spans.pop(event.id, None)) is not None:
                        span.end(error=event.code)
                    ends.append((gateway, m.Failed(**asdict(event))))
                    del self._owners[event.id]
                case PrecomputedEvent():
                    ends.append((gateway, m.Precomputed(**asdict(event))))
                    self._unstored[event.id] -= 1
                    if not self._unstored[event.id]:
                        del self._unstored[event.id], self._owners[event.id]
        for gateway, items in tokens.items():
            outlet.send(gateway, wire.encode(m.Tokens(items)))
        for gateway, message in ends:
            outlet.send(gateway, wire.encode(message))

    def _report(self) -> None:
        outlet = self._link.outlet()
        while not self._stopping.wait(STATS_EVERY_S):
            started = time.monotonic()
            scheduler = self._engine.scheduler
            values = store_values(self._store.stats()) + engine_values(self._engine)
            stats = m.Stats(
                values=values,
                running=len(scheduler.running) + len(scheduler.opened),
                waiting=len(scheduler.waiting),
                pool_free=self._engine.pool.free_share,
            )
            for gateway in list(self._gateways):
                outlet.send(gateway, wire.encode(stats))
            if (took := time.monotonic() - started) > STATS_EVERY_S:
                log.warning("collecting counters took %.1f s: a tier answers slowly", took)
        outlet.close()


def _attributes(event: DoneEvent) -> dict[str, str | int | float]:
    report = event.report
    return {
        "kvstitch.finish_reason": event.finish_reason,
        "kvstitch.prompt_tokens": report.prompt_tokens,
        "kvstitch.cached_tokens": report.cached_tokens,
        "kvstitch.completion_tokens": report.completion_tokens,
    }


def set_threads(threads: int) -> None:
    """Intra-op threads of this process; 0 leaves torch's default."""
    if threads:
        torch.set_num_threads(threads)
