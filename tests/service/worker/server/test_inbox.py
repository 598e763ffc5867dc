"""Messages of gateways reach the engine's thread in order, and nothing is lost or waited for."""

from __future__ import annotations

import time

import pytest

from service.messages import wire
from service.messages.requests import Abort, Hello
from service.worker.server.inbox import Inbox


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
    assert time.monotonic() - started < 1.0


def test_what_is_no_message_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox()
    inbox.receive(b"one", b"\x00 not a message")
    assert list(inbox.messages(0.0)) == []
    assert "not understood" in caplog.text
