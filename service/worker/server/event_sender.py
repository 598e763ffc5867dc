"""Sends the engine's events as messages to the gateways that asked, and ends their trace spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from service import messages as m
from service import wire
from service.shared.tracing import Span, Tracing
from service.worker.core.request import (
    DoneEvent,
    Event,
    ExplainedEvent,
    FailedEvent,
    PrecomputedEvent,
    TokenEvent,
)
from service.worker.server.link import Outlet


class EventSender:
    """Remembers who asked for what until the last event of it is sent. Not thread-safe."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._gateways: dict[str, bytes] = {}  # by id of the request or precompute call
        self._spans: dict[str, Span] = {}  # by request id
        self._open_chunks: dict[str, int] = {}  # precompute call → chunks not yet reported

    def expect_answer(self, id: str, gateway: bytes, traceparent: str) -> None:
        """`gateway` asked for an answer."""
        self._gateways[id] = gateway
        self._spans[id] = self._tracing.begin("kvstitch.generate", traceparent)

    def expect_explanation(self, id: str, gateway: bytes) -> None:
        """`gateway` asked what an answer would cost."""
        self._gateways[id] = gateway

    def expect_chunks(self, id: str, gateway: bytes, count: int) -> None:
        """`gateway` asked for `count` chunks to be precomputed."""
        if count:
            self._gateways[id] = gateway
            self._open_chunks[id] = count

    def asked_by(self, gateway: bytes) -> list[str]:
        """Ids of what a gateway waits for."""
        return [id for id, waiting in self._gateways.items() if waiting == gateway]

    @property
    def open_calls(self) -> list[str]:
        """Ids of precompute calls that have not ended."""
        return list(self._open_chunks)

    def send(self, outlet: Outlet, events: Sequence[Event]) -> None:
        """Sends events in order, but all tokens first: one message per gateway."""
        tokens: dict[bytes, list[m.TokenItem]] = {}
        others: list[tuple[bytes, m.Message]] = []
        for event in events:
            gateway = self._gateways.get(event.id)
            if gateway is None:
                continue
            if isinstance(event, TokenEvent):
                item = m.TokenItem(event.id, event.token, event.logprobs)
                tokens.setdefault(gateway, []).append(item)
            else:
                others.append((gateway, self._message(event)))
        for gateway, items in tokens.items():
            outlet.send(gateway, wire.encode(m.Tokens(items)))
        for gateway, message in others:
            outlet.send(gateway, wire.encode(message))

    def _message(
        self, event: DoneEvent | ExplainedEvent | FailedEvent | PrecomputedEvent
    ) -> m.Message:
        match event:
            case DoneEvent():
                self._spans.pop(event.id).end(event.report.stages, _attributes(event))
                del self._gateways[event.id]
                return m.Done(event.id, event.finish_reason, event.report)
            case ExplainedEvent():
                del self._gateways[event.id]
                return m.Explained(event.id, event.forecast)
            case FailedEvent():
                if (span := self._spans.pop(event.id, None)) is not None:
                    span.end(error=event.code)
                self._open_chunks.pop(event.id, None)
                del self._gateways[event.id]
                return m.Failed(**asdict(event))
            case PrecomputedEvent():
                self._open_chunks[event.id] -= 1
                if not self._open_chunks[event.id]:
                    del self._open_chunks[event.id], self._gateways[event.id]
                return m.Precomputed(**asdict(event))


def _attributes(event: DoneEvent) -> dict[str, str | int | float]:
    report = event.report
    return {
        "kvstitch.finish_reason": event.finish_reason,
        "kvstitch.prompt_tokens": report.prompt_tokens,
        "kvstitch.cached_tokens": report.cached_tokens,
        "kvstitch.completion_tokens": report.completion_tokens,
    }
