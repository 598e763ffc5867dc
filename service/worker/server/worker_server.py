"""Serves the engine on a socket: messages in, engine steps, replies out.

Three threads: the link moves bytes; the reporter sends counters every second, which is also the
heartbeat; the thread that calls `WorkerServer.run` runs the engine.

    drain: gateways learn of it ── waiting requests go back ── running ones end ── the process ends
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from kvstitch.encryption.keyring import Keyring
from kvstitch.service.errors import InvalidRequest, KvstitchError, Overloaded, WorkerUnavailable
from kvstitch.service.messages.replies import Failed, GateStates, Precomputed, Purged
from kvstitch.service.messages.requests import (
    Abort,
    AskGate,
    AskHoldings,
    ChunkNames,
    Compared,
    Explain,
    Generate,
    Hello,
    Keys,
    Ping,
    Precompute,
    Prefetch,
    Purge,
    Shutdown,
    ToWorker,
)
from kvstitch.service.worker.engine.engine import Engine
from kvstitch.service.worker.gate.policy import Observation
from kvstitch.service.worker.methods.registry import reads_whole_chunks
from kvstitch.service.worker.model.addressing import Address
from kvstitch.service.worker.server.leases import GatewayKeys, Leases
from kvstitch.service.worker.server.link import Inbox, ReplySender
from kvstitch.service.worker.server.reporter import Reporter

log = logging.getLogger("kvstitch.worker")

IDLE_WAIT_S = 0.5  # how long an idle engine waits for a message before it looks again
FLUSH_TIMEOUT_S = 10.0
DRAIN_S = 1.0  # in which requests that gateways had sent before they knew arrive, and go back
SILENT_S = 30.0  # after which what a gateway that used to ping has asked for is dropped
LEASES_EVERY_S = 0.5
UNHEARD = WorkerUnavailable("the worker had not heard of the gateway for too long")
GIVEN_UP = Overloaded("nobody waits for these chunks any more")
DRAINING = Overloaded("the worker is shutting down: send the request again", retry_after_s=1.0)


class WorkerServer:
    """Serves one engine until it is told to stop."""

    def __init__(
        self,
        engine: Engine,
        inbox: Inbox,
        replies: ReplySender,
        reporter: Reporter,
        leases: Leases | None = None,
        keys: Keyring | None = None,
    ) -> None:
        """The engine's store and loader must be started. A worker without leases was started by
        one gateway, which may end it."""
        self._engine = engine
        self._keys = keys
        self._gateway_keys = None if keys is None else GatewayKeys(keys)
        self._inbox = inbox
        self._replies = replies
        self._reporter = reporter
        self._leases = leases
        self._pinged: dict[bytes, float] = {}  # time of the last ping, by gateway
        self._leases_checked_at = float("-inf")
        self._draining = threading.Event()
        self._gave_back_at: float | None = None  # when what waited went back
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Make `run` finish what is running and return. For any thread and signal handler."""
        self._stopping.set()
        self._inbox.wake()

    def drain(self) -> None:
        """Make `run` take nothing new, give back what has not begun, finish what runs and
        return. For any thread and signal handler."""
        self._reporter.draining = True
        self._draining.set()
        self._inbox.wake()

    def run(self) -> None:
        """Serve on the calling thread; return after `stop` or `drain`, when nothing is left."""
        store = self._engine.store
        self._reporter.start()
        try:
            self._check_leases()  # those of an earlier process may be over
            while not self._ended:
                for gateway, message, arrived in self._inbox.messages(self._wait_s):
                    self._handle(gateway, message, arrived)
                if self._draining.is_set() and self._gave_back_at is None:
                    self._give_back()
                self._check_leases()
                self._replies.send(*self._engine.step())
                self._reporter.measure()
        finally:
            self._stopping.set()
            self._reporter.stop()
            store.flush(FLUSH_TIMEOUT_S)
            if self._draining.is_set():
                self._reporter.send_counters(gone=not store.keeps_on_disk)

    @property
    def _ended(self) -> bool:
        if not self._engine.scheduler.idle:
            return False
        if self._gave_back_at is None:
            return self._stopping.is_set()
        return self._stopping.is_set() or time.monotonic() >= self._gave_back_at + DRAIN_S

    @property
    def _wait_s(self) -> float:
        """How long to wait for a message."""
        if not self._engine.idle:
            return 0.0
        wait_s = IDLE_WAIT_S if self._gave_back_at is None else DRAIN_S / 10
        return min(wait_s, self._engine.idle_s)

    def _give_back(self) -> None:
        """Tell gateways that this worker takes nothing new, and what has not begun."""
        self._gave_back_at = time.monotonic()
        # Before what goes back, so that gateways know why.
        self._reporter.send_counters()
        calls = self._replies.open_calls
        self._engine.precompute_queue.cancel(calls)
        self._replies.send(*(Failed.of(id, DRAINING) for id in calls))
        self._engine.give_back_waiting(DRAINING)

    def _check_leases(self) -> None:
        """Drop what may have been deleted, and what gateways asked for that are gone."""
        now = time.monotonic()
        if self._leases is None or now - self._leases_checked_at < LEASES_EVERY_S:
            return
        self._leases_checked_at = now
        for gateway in [g for g, pinged in self._pinged.items() if now - pinged > SILENT_S]:
            log.warning("a gateway has been silent for %.0f s: what it wanted is dropped", SILENT_S)
            asked = self._replies.open_requests(gateway)
            for id in asked:
                self._engine.abort(id, "disconnect")
            self._engine.precompute_queue.cancel(asked)
            # It may only have been slow: then this tells it why.
            self._replies.send(*(Failed.of(id, UNHEARD) for id in asked))
            del self._pinged[gateway]
            self._reporter.remove(gateway)
            self._change_keys(partial(GatewayKeys.silent, gateway=gateway))
        if self._leases.over():
            self._engine.forget_all()
            if not self._engine.store.delete_own():
                self._leases.again()
                log.error("what only this worker holds could not be deleted; it is tried again")
        self._leases.note()

    # -- messages ---------------------------------------------------------------------------------

    def _handle(self, gateway: bytes, message: ToWorker, arrived: float) -> None:
        match message:
            case Hello():
                self._reporter.add(gateway)
                if self._leases is not None and message.lease_s:
                    self._leases.begin(message.domain, message.lease_s)
                    self._pinged[gateway] = time.monotonic()
                self._replies.send_to(gateway, self._reporter.ready)
            case Ping(domain, lease_s, clock):
                if self._leases is not None:
                    self._leases.renew(domain, lease_s, clock)
                    self._reporter.add(gateway)
                    self._pinged[gateway] = time.monotonic()
                    self._change_keys(lambda keys: keys.heard(gateway))
            case Keys():
                self._take_keys(gateway, message)
            case Generate() | Precompute() if self._gave_back_at is not None:
                self._replies.send_to(gateway, Failed.of(message.id, DRAINING))
            case Generate():
                self._replies.expect_answer(message.id, gateway, message.traceparent)
                self._submit(message, arrived)
                self._reporter.received(gateway)
            case Explain(request):
                self._replies.expect_explanation(request.id, gateway)
                self._submit(request, arrived, explain=True)
            case Abort():
                self._abort(message)
            case Prefetch():
                if reads_whole_chunks(message.fusion):
                    with suppress(InvalidRequest):  # of a decoder; the request itself will say so
                        found = self._addresses(message)
                        self._engine.loader.prefetch(a for a in found if a is not None)
            case Precompute():
                self._precompute(gateway, message)
            case Purge():
                self._replies.send_to(gateway, self._purge(message))
            case Compared(id, kl, agrees):
                if self._engine.gate is not None:
                    self._engine.gate.compared(id, Observation(kl, agrees))
            case AskGate():
                self._replies.send_to(gateway, self._gate_states(message))
            case AskHoldings():
                self._reporter.report_cached(gateway)
            case Shutdown():
                if self._leases is None:  # else others use this worker, too
                    self.stop()

    def _take_keys(self, gateway: bytes, message: Keys) -> None:
        alone = self._leases is None
        self._change_keys(lambda keys: keys.take(gateway, message.keys, alone=alone))

    def _change_keys(self, change: Callable[[GatewayKeys], bool]) -> None:
        """Seal and open with other keys; nothing stays in memory of whom they were deleted."""
        if self._keys is None or self._gateway_keys is None:
            return
        before = self._keys.owners()
        if not change(self._gateway_keys):
            return
        if before - self._keys.owners():
            self._engine.forget_all()
            self._engine.store.forget_in_memory()

    def _submit(self, message: Generate, arrived: float, *, explain: bool = False) -> None:
        try:
            if self._reporter.cached.reported:
                self._addresses(message)
            self._engine.explain(message) if explain else self._engine.submit(message, arrived)
        except Exception as error:
            if not isinstance(error, KvstitchError):
                log.error("request %s was refused", message.id, exc_info=error)
            self._replies.send(Failed.of(message.id, error))

    def _precompute(self, gateway: bytes, message: Precompute) -> None:
        self._replies.expect_chunks(message.id, gateway, len(message.documents))
        try:
            system, *documents = self._addresses(message)
        except InvalidRequest as error:
            self._replies.send(Failed.of(message.id, error))
            return
        if system is not None:
            self._engine.precompute_queue.add(system)
        for chunk, address in zip(message.documents, documents, strict=True):
            if address is None:
                self._replies.send(Precomputed(message.id, chunk.chunk_id, "present", 0, 0.0))
            else:
                self._engine.precompute_queue.add(address, id=message.id, chunk_id=chunk.chunk_id)

    def _abort(self, message: Abort) -> None:
        if message.id in self._replies.open_calls:
            self._engine.precompute_queue.cancel([message.id])
            self._replies.send(Failed.of(message.id, GIVEN_UP))
        else:
            self._engine.abort(message.id, message.reason)

    def _purge(self, message: Purge) -> Purged:
        keys = self._engine.admission.purged(message.system, message.documents, message.tenant)
        texts = [tuple(ids) for ids in (*(c.ids for c in message.documents), *message.prompts)]
        self._engine.forget(keys, texts)
        store = self._engine.store
        copies = store.delete(keys)
        unreached = [name for name in store.tier_names if name not in copies]
        return Purged(message.id, copies, unreached)

    def _gate_states(self, message: AskGate) -> GateStates:
        gate = self._engine.gate
        if gate is None:
            return GateStates(message.id, False, [])
        if message.reset is not None:
            gate.reset(message.reset)
        return GateStates(message.id, True, gate.states())

    def _addresses(self, message: Generate | Prefetch | Precompute) -> list[Address | None]:
        """Return addresses of S and of the chunks, whose names are told to `CachedChunks` if
        gateways ask for them."""
        system, *chunks = self._engine.admission.addresses(message)
        if self._reporter.cached.reported:
            names = ChunkNames(message.system, message.prefix_mode, message.tenant, message.lora)
            self._reporter.cached.name(
                (address.key, names.of(chunk))
                for chunk, address in zip(message.documents, chunks, strict=True)
                if address is not None
            )
        return [system, *chunks]
