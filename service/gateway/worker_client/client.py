"""The gateway's end of the connection to one worker process.

    connect(address) ── Hello … Ready ── calls ── heartbeat missing or disconnect() ── down
          ^                                              │ every open call ends in Failed
          └──────────── a new socket each time ──────────┘

Every connection has a new socket, so that nothing meant for a dead worker reaches its successor.
All methods must be called on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any, cast

import msgspec
import zmq
import zmq.asyncio

from service import wire
from service.errors import Overloaded, WorkerUnavailable, from_code
from service.gateway.worker_client.protocol import Event
from service.messages import (
    Abort,
    AskGate,
    Chunk,
    Done,
    Explain,
    Explained,
    Failed,
    Forecast,
    FromWorker,
    GateStates,
    Generate,
    Hello,
    Message,
    Precompute,
    Precomputed,
    Prefetch,
    Purge,
    Purged,
    Ready,
    Shutdown,
    Stats,
    TokenItem,
    Tokens,
)

logger = logging.getLogger(__name__)

RESTARTED = "the worker was restarted; send the request again"
RETRY_AFTER_S = 5.0


class WorkerClient:
    """A `Worker` over a ZeroMQ DEALER socket.

    Attributes:
        ready: What the worker said when it was ready; None while it is not.
        stats: Its latest heartbeat.
        reason: Why it is not ready.
        silent: Set when the heartbeat of a ready worker stops.
    """

    def __init__(
        self,
        *,
        heartbeat_timeout_s: float = 10.0,
        hello_every_s: float = 0.5,
        on_stats: Callable[[Stats], None] = lambda stats: None,
        on_change: Callable[[bool], None] = lambda up: None,
        on_left: Callable[[int], None] = lambda tokens: None,
    ) -> None:
        """Not connected yet.

        Args:
            heartbeat_timeout_s: Silence after which a ready worker counts as gone.
            hello_every_s: Pause between two Hello messages until the worker is ready.
            on_stats: Called at every heartbeat.
            on_change: Called with True when the worker becomes ready, False when it is gone.
            on_left: Called for every request that was aborted early, with the number of tokens
                that the worker still generated for it, by the worker's own count.
        """
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._hello_every_s = hello_every_s
        self._on_stats = on_stats
        self._on_change = on_change
        self._on_left = on_left
        self._left: dict[str, int] = {}  # id of an aborted request → tokens received until then
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._calls: dict[str, asyncio.Queue[FromWorker | TokenItem]] = {}
        self._changed = asyncio.Condition()
        self._heard = 0.0
        self.ready: Ready | None = None
        self.stats: Stats | None = None
        self.reason = "the worker is being started"
        self.silent = asyncio.Event()

    # -- connection ------------------------------------------------------------------------------

    def connect(self, address: str) -> None:
        """Say Hello to the worker at `address` until it is ready. Replaces any connection."""
        self.disconnect(RESTARTED)
        if self._context is None:
            self._context = zmq.asyncio.Context()
        self._socket = socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, f"gateway-{uuid.uuid4().hex}".encode())
        socket.setsockopt(zmq.LINGER, 200)  # lets Shutdown be sent, but does not delay closing
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(address)
        self.reason = "the worker is loading the model"
        self.silent.clear()
        self._tasks = [
            asyncio.create_task(self._receive(socket)),
            asyncio.create_task(self._watch(address)),
        ]

    def disconnect(self, reason: str) -> None:
        """Drop the connection; every open call ends in Failed(worker_unavailable, `reason`)."""
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._tasks = []
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._left.clear()
        was_ready, self.ready, self.reason = self.ready is not None, None, reason
        for call_id, queue in self._calls.items():
            queue.put_nowait(Failed(call_id, WorkerUnavailable.code, reason))
        if was_ready:
            self._on_change(False)

    async def close(self) -> None:
        tasks = self._tasks
        self.disconnect("the service is shutting down")
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._context is not None:
            self._context.term()
            self._context = None

    async def wait_ready(self) -> Ready:
        async with self._changed:
            await self._changed.wait_for(lambda: self.ready is not None)
        return self.require()

    def require(self) -> Ready:
        if self.ready is None:
            raise WorkerUnavailable(self.reason, retry_after_s=RETRY_AFTER_S)
        return self.ready

    # -- calls -----------------------------------------------------------------------------------

    async def submit(self, request: Generate) -> AsyncGenerator[Event, None]:
        """Generate an answer. Closing or cancelling the generator aborts it in the worker.

        Yields:
            Its tokens, then exactly one Done or Failed, whatever happens.
        """
        with self._call(request.id, request) as queue:
            ended, tokens = False, 0
            try:
                while not ended:
                    event = await queue.get()
                    tokens += isinstance(event, TokenItem)
                    if isinstance(event, TokenItem | Done | Failed):
                        ended = not isinstance(event, TokenItem)
                        yield event
            finally:
                unread = [queue.get_nowait() for _ in range(queue.qsize())]
                if not ended and all(isinstance(event, TokenItem) for event in unread):
                    self._left[request.id] = tokens + len(unread)
                    self.abort(request.id, "disconnect")

    async def explain(self, request: Generate) -> Forecast:
        """What a request would take. Raises the error that the worker reports."""
        with self._call(request.id, Explain(request)) as queue:
            reply = await queue.get()
            if isinstance(reply, Explained):
                return reply.forecast
            if isinstance(reply, Failed):
                raise from_code(reply.code, reply.message, reply.field)
            raise WorkerUnavailable(f"the worker explained with {type(reply).__name__}")

    def abort(self, request_id: str, reason: str) -> None:
        """Stop a sequence; its stream then ends with the worker's Done."""
        with contextlib.suppress(WorkerUnavailable, Overloaded):
            self._send(Abort(request_id, reason))

    def prefetch(self, message: Prefetch) -> None:
        """Send a hint; it is dropped silently if it cannot be sent."""
        with contextlib.suppress(WorkerUnavailable, Overloaded):
            self._send(message)

    async def precompute(
        self, system: list[int], chunks: Sequence[Chunk], prefix_mode: str, tenant: str
    ) -> AsyncGenerator[Precomputed, None]:
        """Compute and store the KV of chunks. Raises the error that the worker reports.

        Yields:
            One reply per chunk, as it is done.
        """
        message = Precompute(uuid.uuid4().hex, system, list(chunks), prefix_mode, tenant)
        with self._call(message.id, message) as queue:
            for _ in chunks:
                reply = await queue.get()
                if isinstance(reply, Failed):
                    raise from_code(reply.code, reply.message, reply.field)
                if isinstance(reply, Precomputed):
                    yield reply

    async def purge(
        self, system: list[int], chunks: Sequence[Chunk], prefix_mode: str, tenant: str
    ) -> Purged:
        """Delete the KV of chunks in every tier. Raises the error that the worker reports."""
        message = Purge(uuid.uuid4().hex, system, list(chunks), prefix_mode, tenant)
        with self._call(message.id, message) as queue:
            reply = await queue.get()
            if isinstance(reply, Purged):
                return reply
            if isinstance(reply, Failed):
                raise from_code(reply.code, reply.message, reply.field)
            raise WorkerUnavailable(f"the worker answered a purge with {type(reply).__name__}")

    async def gate(self, *, reset: str | None = None) -> GateStates:
        """The states of methods at the correctness gate, after `reset` of one ("": of all)."""
        message = AskGate(uuid.uuid4().hex, reset)
        with self._call(message.id, message) as queue:
            reply = await queue.get()
            if isinstance(reply, GateStates):
                return reply
            if isinstance(reply, Failed):
                raise from_code(reply.code, reply.message, reply.field)
            raise WorkerUnavailable(f"the worker told of its gate with {type(reply).__name__}")

    def shutdown(self) -> None:
        """Ask the worker to finish and exit."""
        with contextlib.suppress(WorkerUnavailable, Overloaded):
            self._send(Shutdown())
        for watching in self._tasks[1:]:  # silence is expected from here on
            watching.cancel()

    @contextlib.contextmanager
    def _call(
        self, call_id: str, message: Message
    ) -> Iterator[asyncio.Queue[FromWorker | TokenItem]]:
        self.require()
        queue: asyncio.Queue[FromWorker | TokenItem] = asyncio.Queue()
        self._calls[call_id] = queue
        try:
            self._send(message)
            yield queue
        finally:
            del self._calls[call_id]

    def _send(self, message: Message) -> None:
        if self._socket is None:
            raise WorkerUnavailable(self.reason, retry_after_s=RETRY_AFTER_S)
        # With NOBLOCK the future is done at once: the message was sent, or the queue is full.
        sent = cast("asyncio.Future[Any]", self._socket.send(wire.encode(message), zmq.NOBLOCK))
        if sent.done() and sent.exception() is not None:
            raise Overloaded("the worker does not take messages", retry_after_s=RETRY_AFTER_S)

    # -- replies ---------------------------------------------------------------------------------

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            data = await socket.recv()
            self._heard = asyncio.get_running_loop().time()
            try:
                message = wire.decode_from_worker(data)
            except msgspec.DecodeError:
                logger.exception("the worker sent a message that cannot be read; it is dropped")
                continue
            await self._dispatch(message)

    async def _dispatch(self, message: FromWorker) -> None:
        match message:
            case Tokens(items):
                for item in items:
                    self._deliver(item.id, item)
            case Stats():
                self.stats = message
                self._on_stats(message)
            case Ready():
                if self.ready is None:
                    self.ready = message
                    self._on_change(True)
                    async with self._changed:
                        self._changed.notify_all()
            case _:
                self._deliver(message.id, message)

    def _deliver(self, call_id: str, message: FromWorker | TokenItem) -> None:
        # Requests aborted early have no queue any more; only their last message still counts.
        if isinstance(message, Done | Failed):
            before = self._left.pop(call_id, None)
            if before is not None and isinstance(message, Done):
                self._on_left(message.report.completion_tokens - before)
        if (queue := self._calls.get(call_id)) is not None:
            queue.put_nowait(message)

    async def _watch(self, address: str) -> None:
        """Say Hello until Ready, then watch the heartbeat; connect anew when it stops."""
        loop = asyncio.get_running_loop()
        while self.ready is None:
            with contextlib.suppress(Overloaded):
                self._send(Hello())
            await asyncio.sleep(self._hello_every_s)
        while loop.time() - self._heard < self._heartbeat_timeout_s:
            await asyncio.sleep(self._heartbeat_timeout_s / 10)
        logger.error("the worker has been silent for %.0f s", self._heartbeat_timeout_s)
        self.connect(address)
        self.silent.set()
