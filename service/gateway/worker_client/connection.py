"""The gateway's end of the connection to one worker process.

    connect(address) ── Hello … Ready ── calls ── heartbeat missing or disconnect() ── down
          ^                                              │ every open call ends in Failed
          └──────────── a new socket each time ──────────┘

Every connection has a new socket, so that nothing meant for a dead worker reaches its successor.
Over TCP a connection that breaks is down at once: ZeroMQ would mend it, but not say what was lost.
All methods must be called on one event loop.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec
import zmq
import zmq.asyncio

from kvstitch.encryption.keyring import Keyring
from kvstitch.service.errors import Overloaded, WorkerUnavailable
from kvstitch.service.gateway.worker_client.sockets import dealer, when_broken
from kvstitch.service.messages import wire
from kvstitch.service.messages.replies import (
    Done,
    Failed,
    FromWorker,
    Holdings,
    Ready,
    Stats,
    TokenItem,
    Tokens,
)
from kvstitch.service.messages.requests import Hello, Keys, Message, Ping, Shutdown
from kvstitch.service.messages.wire import KNOWN_PROTOCOLS

logger = logging.getLogger(__name__)

RESTARTED = "the worker was restarted; send the request again"
RETRY_AFTER_S = 5.0
# Silence of a worker that never answered, after which the secret may be the reason; and the pause
# between two Hello messages to one that this gateway cannot use.
UNHEARD_S = 5.0
REFUSED_HELLO_S = 5.0


HELLO = Hello()


class WorkerConnection:
    """A ZeroMQ DEALER socket to one worker, and the calls that are open on it.

    Args:
        heartbeat_timeout_s: Silence after which a ready worker counts as gone.
        hello_every_s: Pause between two Hello messages until the worker is ready.
        on_stats: Called at every heartbeat.
        on_change: Called with True when the worker becomes ready, False when it is gone.
        on_left: Called when an aborted request has ended in the worker, with the number of tokens
            that the worker generated for it after the abort.
        on_holdings: Called when the worker tells what its memory tier holds.
        hello: The first message; if it has a lease, the lease is renewed ten times as often as it
            would end.
        secret: The fleet's secret; empty: there is none.
        keys: Keys of tenants, with which the worker encrypts KV; None: KV is not encrypted.
        refuse: Called when a worker is ready; returns why it cannot be used, None if it can.

    Attributes:
        ready: What the worker said when it was ready; None while it is not.
        stats: Its latest heartbeat.
        reason: Why it is not ready.
        last_heard: When its last message came, by the event loop's clock; 0 before the first.
        gone: Whether the worker's last heartbeat said that it ends and has dropped its KV, so that
            no deletion has to wait for it.
        silent: Set when the heartbeats of a ready worker stop.
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
        hello: Hello = HELLO,
        secret: str = "",
        keys: Keyring | None = None,
        refuse: Callable[[Ready], str | None] = lambda ready: None,
    ) -> None:
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._hello_every_s = hello_every_s
        self._on_stats = on_stats
        self._on_change = on_change
        self._on_left = on_left
        self._on_holdings = on_holdings
        self._hello = hello
        self._secret = secret
        self._refuse = refuse
        self._keys = keys
        self._keys_sent: int | None = None  # version of the keys that this connection has sent
        self._refused: str | None = None
        self._draining = False
        self.gone = False
        self._clock: float | None = None  # the worker's, in its last heartbeat
        self._left: dict[str, int] = {}  # id of an aborted request → tokens received until then
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()  # cancelled; some have a socket to close
        self._calls: dict[str, asyncio.Queue[FromWorker | TokenItem]] = {}
        self._changed = asyncio.Condition()
        self.last_heard = 0.0
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
        self._socket = socket = dealer(self._context, address, self._secret)
        socket.connect(address)
        self.reason = "the worker is loading the model"
        self._refused = None
        self.silent.clear()
        self._tasks = [
            asyncio.create_task(self._receive(socket)),
            asyncio.create_task(self._watch(address)),
        ]
        if address.startswith("tcp://"):
            self._tasks.append(asyncio.create_task(self._break(socket, address)))

    def disconnect(self, reason: str) -> None:
        """Drop the connection; every open call ends in Failed(worker_unavailable, `reason`)."""
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
        self._tasks = []
        if self._socket is not None:
            # The task that reads the events ends later. ZeroMQ's thread, which serves every
            # connection of this process, would wait forever to tell it of one more.
            self._socket.disable_monitor()
            self._socket.close()
            self._socket = None
        self._left.clear()
        self._clock, self._draining, self._keys_sent = None, False, None
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
        self.disconnect("the service is shutting down")
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._context is not None:
            self._context.term()
            self._context = None

    async def wait_ready(self) -> Ready:
        async with self._changed:
            await self._changed.wait_for(lambda: self.ready is not None)
        return self.require()

    @property
    def draining(self) -> bool:
        """Whether the worker is about to end, and takes nothing new."""
        return self.ready is not None and self._draining

    def require(self) -> Ready:
        if self.ready is None:
            raise WorkerUnavailable(self.reason, retry_after_s=RETRY_AFTER_S)
        return self.ready

    @contextlib.contextmanager
    def call(
        self, call_id: str, message: Message
    ) -> Iterator[asyncio.Queue[FromWorker | TokenItem]]:
        """Send a message, and receive what comes back for `call_id` while the block lasts. Raises
        WorkerUnavailable: the worker is not ready; Overloaded: the socket's queue is full."""
        self.require()
        queue: asyncio.Queue[FromWorker | TokenItem] = asyncio.Queue()
        self._calls[call_id] = queue
        try:
            self.send(message)
            yield queue
        finally:
            del self._calls[call_id]

    def send(self, *messages: Message) -> None:
        """Send messages that expect no reply, and before them the keys of tenants, if these have
        changed since they were sent. Raises as `call`."""
        if self._socket is None:
            raise WorkerUnavailable(self.reason, retry_after_s=RETRY_AFTER_S)
        version = None if self._keys is None else self._keys.version
        if self._keys is not None and self._keys_sent != version:
            messages = (Keys(self._keys.all()), *messages)
        for message in messages:
            # With NOBLOCK the future is done at once: the message was sent, or the queue is full.
            sent = cast("asyncio.Future[Any]", self._socket.send(wire.encode(message), zmq.NOBLOCK))
            if sent.done() and sent.exception() is not None:
                raise Overloaded("the worker does not take messages", retry_after_s=RETRY_AFTER_S)
            if isinstance(message, Keys):
                self._keys_sent = version

    # -- replies ---------------------------------------------------------------------------------

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            data = await socket.recv()
            self.last_heard = asyncio.get_running_loop().time()
            try:
                message = wire.decode_from_worker(data)
            except msgspec.DecodeError:
                logger.exception("the worker sent a message that cannot be read; it is dropped")
                continue
            await self._dispatch(message)

    async def _dispatch(self, message: FromWorker) -> None:
        match message:
            case Stats():
                self.stats, self._clock = message, message.clock
                self._draining, self.gone = message.draining, message.gone
                self._on_stats(message)
            case Holdings():
                self._on_holdings(message)
            case Ready():
                await self._become_ready(message)
            case _:
                for reply in message.items if isinstance(message, Tokens) else [message]:
                    # Requests aborted early have no queue: only their last message still counts.
                    if isinstance(reply, Done | Failed):
                        before = self._left.pop(reply.id, None)
                        if before is not None and isinstance(reply, Done):
                            self._on_left(reply.report.completion_tokens - before)
                    if (queue := self._calls.get(reply.id)) is not None:
                        queue.put_nowait(reply)

    async def _become_ready(self, message: Ready) -> None:
        if self.ready is not None:
            return
        if message.protocol not in KNOWN_PROTOCOLS:
            known = ", ".join(map(str, KNOWN_PROTOCOLS))
            self._refused = (
                f"it speaks protocol {message.protocol}, this gateway {known}: update the older one"
            )
        else:
            self._refused = self._refuse(message)
        if self._refused is not None:
            if self.reason != self._refused:
                logger.error("a worker cannot be used: %s", self._refused)
            self.reason = self._refused
            return
        self.ready, self.gone = message, False
        self._on_change(True)
        async with self._changed:
            self._changed.notify_all()

    async def _watch(self, address: str) -> None:
        """Say Hello until Ready, then watch the heartbeat; connect anew when it stops."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while self.ready is None:
            with contextlib.suppress(Overloaded):
                self.send(self._hello)
            if self.last_heard < began < loop.time() - UNHEARD_S and address.startswith("tcp://"):
                self.reason = (
                    f"{address} does not answer: is a worker there, and does it have the same "
                    "KVSTITCH_FLEET_SECRET?"
                )
            waits = self._hello_every_s if self._refused is None else REFUSED_HELLO_S
            await asyncio.sleep(waits)
        # Time in which this process stood still is no silence: what came then is not read yet.
        silent_s, heard = 0.0, self.last_heard
        while silent_s < self._heartbeat_timeout_s:
            self._renew()
            await asyncio.sleep(self._pause_s)
            silent_s = silent_s + self._pause_s if self.last_heard == heard else 0.0
            heard = self.last_heard
        logger.error("the worker has been silent for %.0f s", self._heartbeat_timeout_s)
        self.connect(address)
        self.silent.set()

    async def _break(self, socket: zmq.asyncio.Socket, address: str) -> None:
        """Connect anew when a ready worker's connection breaks."""
        await when_broken(socket, lambda: self.ready is not None)
        logger.error("the connection to the worker at %s broke", address)
        self.connect(address)

    @property
    def _pause_s(self) -> float:
        """Between two looks at a ready worker."""
        lease_s = self._hello.lease_s or self._heartbeat_timeout_s
        return min(self._heartbeat_timeout_s, lease_s) / 10

    def _renew(self) -> None:
        if self._hello.lease_s and self._clock is not None:
            with contextlib.suppress(Overloaded, WorkerUnavailable):
                self.send(Ping(self._hello.domain, self._hello.lease_s, self._clock))
