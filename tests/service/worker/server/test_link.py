"""The link moves bytes to the right gateway, the inbox its messages to the engine's thread, and
replies go to the gateway that asked."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import zmq

from kvstitch.service.errors import InvalidSetting
from kvstitch.service.messages import wire
from kvstitch.service.messages.replies import Failed, Precomputed, TokenItem, Tokens
from kvstitch.service.messages.requests import Abort, Hello
from kvstitch.service.shared import fleet_secret
from kvstitch.service.shared.tracing import Tracing
from kvstitch.service.worker.server.link import Inbox, Link, ReplySender

MESSAGES = 200


def test_what_is_queued_is_sent_before_it_stops(tmp_path: Path) -> None:
    """Also where the thread of the socket is late and finds all of it at once, with the request to
    stop."""
    address = f"ipc://{tmp_path}/link"
    came, go_on, gateways = threading.Event(), threading.Event(), []

    def received(identity: bytes, _: bytes) -> None:
        gateways.append(identity)
        came.set()
        assert go_on.wait(120)

    link = Link(address, received)
    link.start()
    context = zmq.Context()
    gateway = context.socket(zmq.DEALER)
    try:
        gateway.connect(address)
        gateway.send(b"hello")
        assert came.wait(120)  # the link's thread stands still from here on
        for number in range(MESSAGES):
            link.send(gateways[0], b"%d" % number)
        closing = threading.Thread(target=link.close)
        closing.start()
        closing.join(0.2)  # its request to stop is queued too
        go_on.set()
        sent: list[int] = []
        while len(sent) < MESSAGES and gateway.poll(60_000):
            sent.append(int(gateway.recv()))
        closing.join(120)
        assert sent == list(range(MESSAGES))
    finally:
        context.destroy(linger=0)


SECRET = "0123456789abcdef" * 2


def _says(context: zmq.Context[zmq.Socket[bytes]], address: str, server: str, own: str) -> bytes:
    """What a worker's link answers a gateway that has keys of these secrets; b"": nothing."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    if own:
        keys = fleet_secret.curve_keys(own, "gateway")
        socket.curve_secretkey, socket.curve_publickey = keys.secret, keys.public
        socket.curve_serverkey = fleet_secret.curve_keys(server, "worker").public
    socket.connect(address)
    try:
        let_in = own == server == SECRET
        if not socket.poll(60_000 if let_in else 400, zmq.POLLOUT):
            return b""
        socket.send(b"hello")
        return socket.recv() if socket.poll(60_000 if let_in else 1000) else b""
    finally:
        socket.close(linger=0)


def test_over_tcp_only_gateways_of_the_fleet_are_let_in() -> None:
    link = Link("tcp://127.0.0.1:0", lambda who, what: link.send(who, b"ready"), SECRET)
    link.start()
    context = zmq.Context()
    try:
        assert link.address.startswith("tcp://127.0.0.1:") and not link.address.endswith(":0")
        other = "f" * 32
        assert _says(context, link.address, SECRET, SECRET) == b"ready"
        assert _says(context, link.address, SECRET, other) == b""  # knows the worker's public key
        assert _says(context, link.address, other, other) == b""
        assert _says(context, link.address, "", "") == b""
        assert _says(context, link.address, SECRET, SECRET) == b"ready"
    finally:
        context.destroy(linger=0)
        link.close()


def test_an_address_that_others_reach_is_refused_without_a_secret() -> None:
    link = Link("tcp://0.0.0.0:0", print)
    with pytest.raises(InvalidSetting, match="KVSTITCH_FLEET_SECRET"):
        link.start()
    link.close()


def test_messages_come_in_order_with_their_senders() -> None:
    inbox = Inbox()
    inbox.receive(b"one", wire.encode(Hello()))
    inbox.wake()
    inbox.receive(b"two", wire.encode(Abort("r", "gone")))
    before = time.monotonic()
    found = list(inbox.messages(5.0))
    assert [each[:2] for each in found] == [
        (b"one", Hello()),
        (b"two", Abort("r", "gone")),
    ]
    assert all(before - 5 < arrived <= before for _, _, arrived in found)


def test_a_message_that_arrives_meanwhile_is_among_them() -> None:
    inbox, found = Inbox(), []
    inbox.receive(b"one", wire.encode(Hello()))
    for gateway, _, _ in inbox.messages(0.0):
        found.append(gateway)
        if gateway == b"one":
            inbox.receive(b"two", wire.encode(Hello()))
    assert found == [b"one", b"two"]


def test_an_empty_inbox_does_not_wait_unless_it_is_asked_to() -> None:
    started = time.monotonic()
    assert list(Inbox().messages(0.0)) == []
    assert time.monotonic() - started < 60.0


def test_what_is_no_message_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox()
    inbox.receive(b"one", b"\x00 not a message")
    assert list(inbox.messages(0.0)) == []
    assert "not understood" in caplog.text


class Outbox:
    """Stands for the link."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Any]] = []

    def send(self, identity: bytes, payload: bytes) -> None:
        self.sent.append((identity, wire.decode_from_worker(payload)))


def send(sender: ReplySender, *replies: Any) -> list[tuple[bytes, Any]]:
    outbox: Any = sender._link
    outbox.sent.clear()
    sender.send(*replies)
    return list(outbox.sent)


def a_sender() -> ReplySender:
    link: Any = Outbox()
    return ReplySender(link, Tracing())


def test_tokens_of_a_step_are_one_message_for_each_gateway() -> None:
    sender = a_sender()
    for name, gateway in (("a", b"one"), ("b", b"two"), ("c", b"one")):
        sender.expect_answer(name, gateway, "")
    sent = send(sender, TokenItem("a", 1), TokenItem("b", 2), TokenItem("c", 3))
    assert sent == [
        (b"one", Tokens([TokenItem("a", 1), TokenItem("c", 3)])),
        (b"two", Tokens([TokenItem("b", 2)])),
    ]


def test_an_answer_ends_once() -> None:
    sender = a_sender()
    sender.expect_answer("a", b"one", "")
    failed = Failed("a", "worker_fault", "no")
    assert send(sender, TokenItem("a", 1), failed) == [
        (b"one", Tokens([TokenItem("a", 1)])),
        (b"one", Failed("a", "worker_fault", "no")),
    ]
    assert send(sender, failed, TokenItem("a", 2)) == []


def test_a_precompute_call_ends_with_its_last_chunk() -> None:
    sender = a_sender()
    sender.expect_chunks("p", b"one", 2)
    sender.expect_chunks("empty", b"one", 0)
    done = [Precomputed("p", i, "computed", 10, 0.5) for i in range(3)]
    assert [message.chunk_id for _, message in send(sender, *done)] == [0, 1]


def test_nobody_is_told_of_what_nobody_asked() -> None:
    assert send(a_sender(), TokenItem("a", 1)) == []
