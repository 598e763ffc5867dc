"""Messages from gateways, queued for the engine's thread."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Iterator

import msgspec

from service.messages import wire
from service.messages.requests import ToWorker

log = logging.getLogger("kvstitch.worker")


Received = tuple[bytes, ToWorker, float]
"""Identity of the gateway on the link, what it sent, and when that came, by time.monotonic."""


class Inbox:
    """A queue between the threads that report something and the engine's thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Received | None] = queue.SimpleQueue()

    def receive(self, gateway: bytes, payload: bytes) -> None:
        """Decodes and queues a message; called on the link's thread."""
        arrived = time.monotonic()
        try:
            self._queue.put((gateway, wire.decode_to_worker(payload), arrived))
        except msgspec.DecodeError as error:
            log.warning("a message was not understood and ignored: %s", error)

    def wake(self) -> None:
        """Ends a wait in `messages`: something changed, such as a load that finished."""
        self._queue.put(None)

    def messages(self, wait_s: float) -> Iterator[Received]:
        """All messages until the queue is empty, after waiting at most `wait_s` for the first."""
        try:
            item = self._queue.get(timeout=wait_s) if wait_s else self._queue.get_nowait()
            while True:
                if item is not None:
                    yield item
                item = self._queue.get_nowait()
        except queue.Empty:
            return
