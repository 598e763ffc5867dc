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
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
import zmq
import zmq.asyncio

from service import wire
from service.errors import Overloaded, WorkerUnavailable
from service.messages import (
    Done,
    Failed,
    FromWorker,
    Hello,
    Holdings,
    Message,
    Ready,
    Shutdown,
    Stats,
    TokenItem,
    Tokens,
)

logger = logging.getLogger(__name__)

RESTARTED = "the worker was restarted; send the request again"
RETRY_AFTER_S = 5.0


class WorkerConnection:
    """A ZeroMQ DEALER socket to one worker, and the calls that are open on it.

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
        on_holdings: Callable[[Holdings], None] = lambda holdings: None,
    ) -> None:
        """Not connected yet.

        Args:
            heartbeat_timeout_s: Silence after which a ready worker counts as gone.
            hello_every_s: Pause between two Hello messages until the worker is ready.
            on_stats: Called at every heartbeat.
            on_change: Called with True when the worker becomes ready, False when it is gone.
            on_left: Called for every request that was aborted early, with the number of tokens
                that the worker still generated for it, by the worker's own count.
            on_holdings: Called when the worker tells what its memory tier holds.
        """
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._hello_every_s = hello_every_s
        self._on_stats = on_stats
        self._on_change = on_change
        self._on_left = on_left
        self._on_holdings = on_holdings
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

    def shutdown(self) -> None:
        """Ask the worker to finish and exit."""
        with contextlib.suppress(WorkerUnavailable, Overloaded):
            self.send(Shutdown())
        for watching in self._tasks[1:]:  # silence is expected from here on
            watching.cancel()

    async def close(self) -> None:
        """Drop the connection and the sockets' context."""
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

    @contextlib.contextmanager
    def call(
        self, call_id: str, message: Message
    ) -> Iterator[asyncio.Queue[FromWorker | TokenItem]]:
        """Send a message, and receive what comes back for `call_id` while the block lasts.

        Raises:
            WorkerUnavailable: The worker is not ready.
            Overloaded: The socket's queue is full.
        """
        self.require()
        queue: asyncio.Queue[FromWorker | TokenItem] = asyncio.Queue()
        self._calls[call_id] = queue
        try:
            self.send(message)
            yield queue
        finally:
            del self._calls[call_id]

    def send(self, message: Message) -> None:
        """Send a message that expects no reply. Raises as `call`."""
        if self._socket is None:
            raise WorkerUnavailable(self.reason, retry_after_s=RETRY_AFTER_S)
        # With NOBLOCK the future is done at once: the message was sent, or the queue is full.
        sent = cast("asyncio.Future[Any]", self._socket.send(wire.encode(message), zmq.NOBLOCK))
        if sent.done() and sent.exception() is not None:
            raise Overloaded("the worker does not take messages", retry_after_s=RETRY_AFTER_S)

    def note_left(self, call_id: str, tokens: int) -> None:
        """A call ends early, after so many tokens; what comes for it later is counted."""
        self._left[call_id] = tokens

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
            case Holdings():
                self._on_holdings(message)
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
                self.send(Hello())
            await asyncio.sleep(self._hello_every_s)
        while loop.time() - self._heard < self._heartbeat_timeout_s:
            await asyncio.sleep(self._heartbeat_timeout_s / 10)
        logger.error("the worker has been silent for %.0f s", self._heartbeat_timeout_s)
        self.connect(address)
        self.silent.set()
