"""Serves the engine on a socket: messages in, engine steps, events out as messages.

Three threads: the link moves bytes; the reporter sends counters every second, which is also the
heartbeat; the thread that calls `WorkerServer.run` runs the engine.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress

from kvstore import TieredStore
from service import messages as m
from service import wire
from service.errors import InvalidRequest, KvstitchError, WorkerFault
from service.tracing import Tracing
from service.worker.core.request import FailedEvent, PrecomputedEvent, Request
from service.worker.engine.engine import Engine
from service.worker.loading.loader import Loader
from service.worker.methods.registry import reads_whole_chunks
from service.worker.model.addressing import Address
from service.worker.server.event_sender import EventSender
from service.worker.server.inbox import Inbox, ReceivedMessage
from service.worker.server.link import Link, Outlet
from service.worker.server.statistics import engine_values, store_values, tier_values

log = logging.getLogger("kvstitch.worker")

STATS_INTERVAL_S = 1.0
IDLE_WAIT_S = 0.5  # how long an idle engine waits for a message before it looks again
FLUSH_TIMEOUT_S = 10.0


class WorkerServer:
    """Serves one engine until it is told to stop."""

    def __init__(
        self,
        engine: Engine,
        store: TieredStore,
        loader: Loader,
        *,
        ready: m.Ready,
        link: Link,
        inbox: Inbox,
        tracing: Tracing,
    ) -> None:
        self._engine = engine
        self._store = store
        self._loader = loader
        self._ready = ready
        self._link = link
        self._inbox = inbox
        self._sender = EventSender(tracing)
        self._gateways: set[bytes] = set()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Makes `run` finish what is running and return. For any thread and signal handler."""
        self._stopping.set()
        self._inbox.wake()

    def run(self) -> None:
        """Serves on the calling thread. Returns after `stop`, when no sequence is left."""
        outlet = self._link.outlet()
        reporter = threading.Thread(target=self._report, name="reporter", daemon=True)
        reporter.start()
        try:
            while not (self._stopping.is_set() and self._engine.scheduler.idle):
                for received in self._inbox.messages(IDLE_WAIT_S if self._engine.idle else 0.0):
                    self._handle(outlet, received)
                self._sender.send(outlet, self._engine.step())
        finally:
            self._stopping.set()
            outlet.close()
            reporter.join(timeout=STATS_INTERVAL_S * 5)
            self._store.flush(FLUSH_TIMEOUT_S)

    def _handle(self, outlet: Outlet, received: ReceivedMessage) -> None:
        gateway, message = received.gateway, received.message
        match message:
            case m.Hello():
                self._gateways.add(gateway)
                outlet.send(gateway, wire.encode(self._ready))
            case m.Generate():
                self._sender.expect_answer(message.id, gateway, message.traceparent)
                self._submit(outlet, message, received.arrived)
            case m.Explain(request):
                self._sender.expect_explanation(request.id, gateway)
                self._submit(outlet, request, received.arrived, explain=True)
            case m.Abort():
                self._engine.abort(message.id, message.reason)
            case m.Prefetch():
                if reads_whole_chunks(message.fusion):
                    with suppress(InvalidRequest):  # of an adapter; the request itself will say so
                        found = self._addresses(message)
                        self._loader.prefetch(address for address in found if address is not None)
            case m.Precompute():
                self._precompute(outlet, gateway, message)
            case m.Purge():
                outlet.send(gateway, wire.encode(self._purge(message)))
            case m.AskGate():
                outlet.send(gateway, wire.encode(self._gate_states(message)))
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
            self._sender.send(outlet, [FailedEvent.of(message.id, error)])
        except Exception as error:
            log.error("request %s was refused", message.id, exc_info=error)
            fault = WorkerFault(f"{type(error).__name__}: {error}")
            self._sender.send(outlet, [FailedEvent.of(message.id, fault)])

    def _precompute(self, outlet: Outlet, gateway: bytes, message: m.Precompute) -> None:
        self._sender.expect_chunks(message.id, gateway, len(message.documents))
        try:
            system, *documents = self._addresses(message)
        except InvalidRequest as error:
            self._sender.send(outlet, [FailedEvent.of(message.id, error)])
            return
        if system is not None:
            self._engine.precompute_queue.add(system)
        for chunk, address in zip(message.documents, documents, strict=True):
            if address is None:
                event = PrecomputedEvent(message.id, chunk.chunk_id, "present", 0, 0.0)
                self._sender.send(outlet, [event])
            else:
                self._engine.precompute_queue.add(address, id=message.id, chunk_id=chunk.chunk_id)

    def _purge(self, message: m.Purge) -> m.Purged:
        keys = self._engine.admission.purged(message.system, message.documents, message.tenant)
        prompts = self._engine.forget(keys, [tuple(chunk.ids) for chunk in message.documents])
        copies = self._store.delete(keys)
        unreached = [name for name in self._store.tier_names if name not in copies]
        if not prompts:
            unreached.append("prompts")
        return m.Purged(message.id, copies, unreached)

    def _gate_states(self, message: m.AskGate) -> m.GateStates:
        gate = self._engine.gate
        if gate is None:
            return m.GateStates(message.id, False, [])
        if message.reset is not None:
            gate.reset(message.reset)
        return m.GateStates(message.id, True, gate.states())

    def _addresses(self, message: m.Prefetch | m.Precompute) -> list[Address | None]:
        return self._engine.admission.addresses(
            message.system, message.documents, message.prefix_mode, message.tenant, message.lora
        )

    def _report(self) -> None:
        """The reporter's thread: sends counters to every gateway that has said hello."""
        outlet = self._link.outlet()
        while not self._stopping.wait(STATS_INTERVAL_S):
            started = time.monotonic()
            scheduler = self._engine.scheduler
            values = store_values(self._store.stats()) + engine_values(self._engine)
            if self._engine.prompts is not None:
                values += tier_values(self._engine.prompts.stats())
            stats = m.Stats(
                values=values,
                running=len(scheduler.running) + len(scheduler.prefilling),
                waiting=len(scheduler.waiting),
                pool_free=self._engine.pool_free_share,
            )
            for gateway in list(self._gateways):
                outlet.send(gateway, wire.encode(stats))
            if (took := time.monotonic() - started) > STATS_INTERVAL_S:
                log.warning("collecting counters took %.1f s: a tier answers slowly", took)
        outlet.close()
