"""A service that ends does not wait for ever; what it cuts off is told so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from types import SimpleNamespace

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvstitch.service.gateway.answers.answer_service import AnswerGroup, NumberedEvent
from kvstitch.service.gateway.answers.answer_stream import TextDelta
from kvstitch.service.gateway.http.answering import EventStream, NamedEvents
from kvstitch.service.gateway.http.middleware import RequestContext
from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.settings.serving import LimitSettings


class Endless(AnswerGroup):
    """An answer that stops after its first piece of text, and does not end."""

    closed = False

    async def events(self) -> AsyncGenerator[NumberedEvent, None]:
        yield NumberedEvent(0, TextDelta("so far"))
        await asyncio.Event().wait()

    async def aclose(self) -> None:
        type(self).closed = True


async def _never(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


async def cancelled(app: ASGIApp) -> list[Message]:
    """What is sent by a request that is cancelled while it waits."""
    sent: list[Message] = []
    context = RequestContext(app, limits=LimitSettings(), metrics=GatewayMetrics())
    of_app = SimpleNamespace(state=SimpleNamespace(error_forms={}))
    path = "/v1/rag/generate"
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "app": of_app}

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    task = asyncio.create_task(context(scope, receive, send))
    for _ in range(1000):  # until it has nothing left to do: it waits for no one else
        await asyncio.sleep(0)
    task.cancel()
    await task
    return sent


async def test_a_request_without_an_answer_yet_is_told_to_come_again() -> None:
    start, body = await cancelled(_never)
    assert start["status"] == 503
    assert int(dict(start["headers"])[b"retry-after"]) >= 1
    error = json.loads(body["body"])["error"]
    assert "shutting down" in error["message"] and error["code"] == "worker_unavailable"


async def test_a_stream_ends_in_an_error_event() -> None:
    source = Endless([])
    stream = EventStream(source, NamedEvents(), ping_s=10, headers={})
    start, first, last = await cancelled(stream)
    assert start["status"] == 200 and b"so far" in first["body"]
    assert last["body"].startswith(b"event: error\n") and b"shutting down" in last["body"]
    assert not last["more_body"] and source.closed


async def test_what_has_begun_otherwise_is_only_cut_off() -> None:
    async def begun(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        await cancelled(begun)
