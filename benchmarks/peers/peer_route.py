"""A server of the comparison as a route of the load test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.peers.dialects import Dialect
from benchmarks.peers.prompts import Encoder, Prompt
from kvstitch.service.prompt import Turn
from loadtest.measurement.event_stream import ServerSentEvent
from loadtest.measurement.streamed_answer import StreamedAnswer
from loadtest.traffic.routes import LoadRequest, MethodUnderTest


@dataclass(frozen=True)
class PeerRoute:
    """Writes the load test's requests as the prompts that all servers are asked.

    Attributes:
        dialect: how the server is asked.
        encoder: writes prompts as token ids.
    """

    dialect: Dialect
    encoder: Encoder

    @property
    def path(self) -> str:
        return self.dialect.path

    def body(self, request: LoadRequest, method: MethodUnderTest) -> dict[str, Any]:
        assert request.max_tokens is not None, "answers have a length"
        turns, documents = (Turn("user", request.question),), request.documents
        prompt = Prompt("", "", turns, documents, self.encoder.ids(turns, documents))
        return self.dialect.body(prompt, request.max_tokens)

    def read(self, event: ServerSentEvent, answer: StreamedAnswer, now: float) -> None:
        self.dialect.read(event, answer, now)
