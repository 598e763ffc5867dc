"""Replies go to the gateway that asked, tokens of a step as one message, and nothing is kept."""

from __future__ import annotations

from typing import Any

from service.messages import wire
from service.messages.replies import Failed, Precomputed, TokenItem, Tokens
from service.shared.tracing import Tracing
from service.worker.server.reply_sender import ReplySender


class Outbox:
    """Stands for the link and its outlet."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Any]] = []

    def outlet(self) -> Outbox:
        return Outbox()

    def send(self, identity: bytes, payload: bytes) -> None:
        self.sent.append((identity, wire.decode_from_worker(payload)))


def send(sender: ReplySender, *replies: Any) -> list[tuple[bytes, Any]]:
    sender.open()
    sender.send(*replies)
    outbox: Any = sender.outlet
    return outbox.sent


def a_sender() -> ReplySender:
    link: Any = Outbox()
    return ReplySender(link, Tracing("", "worker"))


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
