"""The worker's socket, a ZeroMQ ROUTER on its own thread; what came over it; who waits for what.

Over TCP, with a fleet's secret, the link is encrypted (CURVE) and open to gateways with the same
secret alone.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator

from kvstitch.service.messages import wire
from kvstitch.service.messages.replies import (
    Done,
    Explained,
    Failed,
    HandedOver,
    Precomputed,
    Reply,
    TokenItem,
    Tokens,
)
from kvstitch.service.messages.requests import Message, ToWorker
from kvstitch.service.messages.wire import MAX_MESSAGE_BYTES
from kvstitch.service.shared import fleet_secret
from kvstitch.service.shared.tracing import Attributes, Span, Tracing

log = logging.getLogger("kvstitch.worker")

# How long what is queued for a gateway may take to leave when the worker ends. A gateway that is
# gone must not hold it up for longer.
LINGER_MS = 5000
# Over TCP, the machine of a gateway may vanish: then what is queued for it is dropped.
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 5_000, 20_000


class Link:
    """Receives messages on its own thread; any thread may send."""

    def __init__(
        self, address: str, received: Callable[[bytes, bytes], None], secret: str = ""
    ) -> None:
        self.address = address
        self._secret = secret
        self._received = received
        self._context = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        self._inner = f"inproc://outbox-{id(self)}"
        self._outbox: zmq.Socket[bytes] | None = None
        self._sending = threading.Lock()
        self._thread: threading.Thread | None = None
        self._bound = threading.Event()
        self._error: zmq.ZMQError | None = None

    def start(self) -> None:
        """Bind the socket and start the thread."""
        fleet_secret.require_secret(self.address, self._secret)
        if fleet_secret.is_encrypted(self.address, self._secret):
            self._authenticator = ThreadAuthenticator(self._context)
            self._authenticator.start()
            self._authenticator.configure_curve_callback(
                credentials_provider=_Gateways(self._secret)
            )
        self._outbox = self._context.socket(zmq.PUSH)
        self._outbox.connect(self._inner)
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()
        self._bound.wait()
        if self._error is not None:
            raise self._error

    def send(self, gateway: bytes, payload: bytes) -> None:
        """Queue a message for a gateway."""
        assert self._outbox is not None, "start the link first"
        with self._sending:
            self._outbox.send_multipart([gateway, payload])

    def close(self) -> None:
        """Send what is queued, then stop; nothing may be sent meanwhile."""
        if self._thread is None:
            self._context.term()
            return
        self.send(b"", b"")
        self._thread.join(timeout=5)
        self._thread = None
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=LINGER_MS)

    def _run(self) -> None:
        router, outbox = self._context.socket(zmq.ROUTER), self._context.socket(zmq.PULL)
        router.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        router.setsockopt(zmq.SNDHWM, 0)  # a slow gateway must not lose a Done
        router.setsockopt(zmq.LINGER, LINGER_MS)
        if self.address.startswith("tcp://"):
            router.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            router.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
            router.setsockopt(zmq.IPV6, int("[" in self.address))
        if self._authenticator is not None:
            keys = fleet_secret.curve_keys(self._secret, "worker")
            router.curve_secretkey, router.curve_publickey = keys.secret, keys.public
            router.curve_server = True
        try:
            outbox.bind(self._inner)
            router.bind(self.address)
            self.address = router.getsockopt_string(zmq.LAST_ENDPOINT) or self.address
        except zmq.ZMQError as error:
            self._error = error
            return
        finally:
            self._bound.set()
        poller = zmq.Poller()
        poller.register(router, zmq.POLLIN)
        poller.register(outbox, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if router in ready:
                frames = router.recv_multipart()
                if len(frames) == 2:
                    self._received(frames[0], frames[1])
                else:
                    log.warning("a message of %d frames was ignored", len(frames))
            if outbox in ready:
                identity, payload = outbox.recv_multipart()
                if not identity:
                    break
                router.send_multipart([identity, payload])
        outbox.close()
        router.close()


class _Gateways:
    """Admits the gateways whose key is the one that the fleet's secret yields."""

    def __init__(self, secret: str) -> None:
        self._key = fleet_secret.curve_keys(secret, "gateway").public

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._key


Received = tuple[bytes, ToWorker, float]
"""Identity of the gateway on the link, what it sent, and when that came, by time.monotonic."""


class Inbox:
    """A queue between the threads that report something and the engine's thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Received | None] = queue.SimpleQueue()

    def receive(self, gateway: bytes, payload: bytes) -> None:
        """Decode and queue a message; called on the link's thread."""
        arrived = time.monotonic()
        try:
            self._queue.put((gateway, wire.decode_to_worker(payload), arrived))
        except msgspec.DecodeError as error:
            log.warning("a message was not understood and ignored: %s", error)

    def wake(self) -> None:
        """End a wait in `messages`: something changed, such as a load that finished."""
        self._queue.put(None)

    def messages(self, wait_s: float) -> Iterator[Received]:
        """Yield messages until the queue is empty; wait at most `wait_s` for the first."""
        try:
            item = self._queue.get(timeout=wait_s) if wait_s else self._queue.get_nowait()
            while True:
                if item is not None:
                    yield item
                item = self._queue.get_nowait()
        except queue.Empty:
            return


class ReplySender:
    """Remembers who asked for what until the last reply to it is sent. For one thread."""

    def __init__(self, link: Link, tracing: Tracing) -> None:
        self._link = link
        self._tracing = tracing
        self._gateways: dict[str, bytes] = {}  # by id of the request or precompute call
        self._spans: dict[str, Span] = {}  # by request id
        self._open_chunks: dict[str, int] = {}  # precompute call → chunks not yet reported

    def expect_answer(self, id: str, gateway: bytes, traceparent: str) -> None:
        """Note that `gateway` asked for an answer."""
        self._gateways[id] = gateway
        self._spans[id] = self._tracing.begin("kvstitch.generate", traceparent)

    def expect_explanation(self, id: str, gateway: bytes) -> None:
        """Note that `gateway` asked what an answer would cost."""
        self._gateways[id] = gateway

    def expect_chunks(self, id: str, gateway: bytes, count: int) -> None:
        """Note that `gateway` asked for `count` chunks to be precomputed."""
        if count:
            self._gateways[id] = gateway
            self._open_chunks[id] = count

    def open_requests(self, gateway: bytes) -> list[str]:
        """Return the ids of requests and calls that a gateway waits for."""
        return [id for id, waiting in self._gateways.items() if waiting == gateway]

    @property
    def open_calls(self) -> list[str]:
        """Ids of the precompute calls that have not ended."""
        return list(self._open_chunks)

    def send_to(self, gateway: bytes, message: Message) -> None:
        """Send a message that no request waits for."""
        self._link.send(gateway, wire.encode(message))

    def send(self, *replies: Reply) -> None:
        """Send replies in order, but all tokens first: one message per gateway."""
        tokens: dict[bytes, list[TokenItem]] = {}
        others: list[tuple[bytes, Message]] = []
        for reply in replies:
            gateway = self._gateways.get(reply.id)
            if gateway is None:
                continue
            if isinstance(reply, TokenItem):
                tokens.setdefault(gateway, []).append(reply)
            else:
                if not isinstance(reply, HandedOver):
                    self._note(reply)
                others.append((gateway, reply))
        for gateway, items in tokens.items():
            self.send_to(gateway, Tokens(items))
        for gateway, message in others:
            self.send_to(gateway, message)

    def _note(self, reply: Done | Explained | Failed | Precomputed) -> None:
        """Forget what this reply is the last one of."""
        match reply:
            case Precomputed():
                self._open_chunks[reply.id] -= 1
                if self._open_chunks[reply.id]:
                    return
            case Done(report=report):
                attributes: Attributes = {
                    "kvstitch.finish_reason": reply.finish_reason,
                    "kvstitch.prompt_tokens": report.prompt_tokens,
                    "kvstitch.cached_tokens": report.cached_tokens,
                    "kvstitch.completion_tokens": report.completion_tokens,
                }
                self._spans.pop(reply.id).end(report.stages, attributes)
            case Failed():
                if (span := self._spans.pop(reply.id, None)) is not None:
                    span.end(error=reply.code)
        self._open_chunks.pop(reply.id, None)
        del self._gateways[reply.id]
