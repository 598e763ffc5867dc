"""The worker's socket: whatever was queued before it is closed is sent."""

from __future__ import annotations

import threading
from pathlib import Path

import zmq

from service.worker.server.link import Link

MESSAGES = 200


def test_what_is_queued_is_sent_before_it_stops(tmp_path: Path) -> None:
    """Also where the thread of the socket is late and finds all of it at once, with the request to
    stop: outlets are read in turns, not in the order of sending."""
    address = f"ipc://{tmp_path}/link"
    came, go_on, gateways = threading.Event(), threading.Event(), []

    def received(identity: bytes, _: bytes) -> None:
        gateways.append(identity)
        came.set()
        assert go_on.wait(30)

    link = Link(address, received)
    link.start()
    context = zmq.Context()
    gateway = context.socket(zmq.DEALER)
    try:
        gateway.connect(address)
        gateway.send(b"hello")
        assert came.wait(30)  # the link's thread stands still from here on
        outlet = link.outlet()
        for number in range(MESSAGES):
            outlet.send(gateways[0], b"%d" % number)
        outlet.close()
        closing = threading.Thread(target=link.close)
        closing.start()
        closing.join(0.2)  # its request to stop is queued too
        go_on.set()
        sent = []
        while len(sent) < MESSAGES and gateway.poll(10_000):
            sent.append(int(gateway.recv()))
        closing.join(30)
        assert sent == list(range(MESSAGES))
    finally:
        context.destroy(linger=0)
