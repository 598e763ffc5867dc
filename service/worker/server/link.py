"""The worker's socket, a ZeroMQ ROUTER on its own thread.

Because of the thread, messages move and heartbeats go out while the engine computes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import zmq

from service.wire import MAX_MESSAGE_BYTES

log = logging.getLogger("kvstitch.worker")

# How long what is queued for a gateway may take to leave when the worker ends. A gateway that is
# gone must not hold it up for longer.
LINGER_MS = 5000


class Link:
    """Receives messages on its own thread; other threads send through an `outlet` each.

    Args:
        address: where to bind, as ZeroMQ writes it.
        received: called on the link's thread with the sender's identity and the payload.
    """

    def __init__(self, address: str, received: Callable[[bytes, bytes], None]) -> None:
        self._address = address
        self._received = received
        self._context = zmq.Context()
        self._inner = f"inproc://outbox-{id(self)}"
        self._thread: threading.Thread | None = None
        self._bound = threading.Event()
        self._error: zmq.ZMQError | None = None

    def start(self) -> None:
        """Binds the socket and starts the thread.

        Raises:
            zmq.ZMQError: the address is taken.
        """
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()
        self._bound.wait()
        if self._error is not None:
            raise self._error

    def outlet(self) -> Outlet:
        """A sender for the calling thread: a ZeroMQ socket must stay on one thread."""
        socket = self._context.socket(zmq.PUSH)
        socket.connect(self._inner)
        return Outlet(socket)

    def close(self) -> None:
        """Sends what is queued, then stops. All outlets must be closed before."""
        if self._thread is None:
            return
        stopper = self.outlet()
        stopper.send(b"", b"")
        stopper.close()
        self._thread.join(timeout=5)
        self._thread = None
        self._context.destroy(linger=LINGER_MS)

    def _run(self) -> None:
        router, outbox = self._context.socket(zmq.ROUTER), self._context.socket(zmq.PULL)
        router.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        router.setsockopt(zmq.SNDHWM, 0)  # a slow gateway must not lose a Done
        router.setsockopt(zmq.LINGER, LINGER_MS)
        try:
            outbox.bind(self._inner)
            router.bind(self._address)
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
        # Outlets are read in turns, so the request to stop may come before messages that other
        # outlets queued earlier: the Done of the last answer among them.
        while True:
            try:
                router.send_multipart(outbox.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                break
        outbox.close()
        router.close()


class Outlet:
    """Sends messages from one thread."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket

    def send(self, identity: bytes, payload: bytes) -> None:
        """Queues a message for the peer of that identity."""
        self._socket.send_multipart([identity, payload])

    def close(self) -> None:
        self._socket.close(linger=1000)
