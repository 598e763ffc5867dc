"""Sends replies to the gateways that asked, and ends their trace spans."""

from __future__ import annotations

from service.messages import wire
from service.messages.replies import Done, Explained, Failed, Precomputed, Reply, TokenItem, Tokens
from service.messages.requests import Message
from service.shared.tracing import Attributes, Span, Tracing
from service.worker.server.link import Link, Outlet


class ReplySender:
    """Remembers who asked for what until the last reply to it is sent. For one thread."""

    outlet: Outlet

    def __init__(self, link: Link, tracing: Tracing) -> None:
        self._link = link
        self._tracing = tracing
        self._gateways: dict[str, bytes] = {}  # by id of the request or precompute call
        self._spans: dict[str, Span] = {}  # by request id
        self._open_chunks: dict[str, int] = {}  # precompute call → chunks not yet reported

    def open(self) -> None:
        """Let the calling thread send."""
        self.outlet = self._link.outlet()

    def close(self) -> None:
        """Send nothing any more."""
        self.outlet.close()

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
        self.outlet.send(gateway, wire.encode(message))

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
