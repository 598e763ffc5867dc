"""Events go to the gateway that asked, tokens of a step as one message, and nothing is kept."""

from __future__ import annotations

from typing import Any

from service import messages as m
from service import wire
from service.shared.tracing import tracing
from service.worker.core.request import FailedEvent, PrecomputedEvent, TokenEvent
from service.worker.server.event_sender import EventSender


class Outbox:
    """Stands for the link's outlet."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Any]] = []

    def send(self, identity: bytes, payload: bytes) -> None:
        self.sent.append((identity, wire.decode_from_worker(payload)))


def send(sender: EventSender, *events: Any) -> list[tuple[bytes, Any]]:
    outbox: Any = Outbox()
    sender.send(outbox, list(events))
    return outbox.sent


def a_sender() -> EventSender:
    return EventSender(tracing("", "worker"))


def test_tokens_of_a_step_are_one_message_for_each_gateway() -> None:
    sender = a_sender()
    for name, gateway in (("a", b"one"), ("b", b"two"), ("c", b"one")):
        sender.expect_answer(name, gateway, "")
    sent = send(sender, TokenEvent("a", 1), TokenEvent("b", 2), TokenEvent("c", 3))
    assert sent == [
        (b"one", m.Tokens([m.TokenItem("a", 1), m.TokenItem("c", 3)])),
        (b"two", m.Tokens([m.TokenItem("b", 2)])),
    ]


def test_an_answer_ends_once() -> None:
    sender = a_sender()
    sender.expect_answer("a", b"one", "")
    failed = FailedEvent("a", "worker_fault", "no")
    assert send(sender, TokenEvent("a", 1), failed) == [
        (b"one", m.Tokens([m.TokenItem("a", 1)])),
        (b"one", m.Failed("a", "worker_fault", "no")),
    ]
    assert send(sender, failed, TokenEvent("a", 2)) == []


def test_a_precompute_call_ends_with_its_last_chunk() -> None:
    sender = a_sender()
    sender.expect_chunks("p", b"one", 2)
    sender.expect_chunks("empty", b"one", 0)
    done = [PrecomputedEvent("p", i, "computed", 10, 0.5) for i in range(3)]
    assert [message.chunk_id for _, message in send(sender, *done)] == [0, 1]


def test_nobody_is_told_of_what_nobody_asked() -> None:
    assert send(a_sender(), TokenEvent("a", 1)) == []
