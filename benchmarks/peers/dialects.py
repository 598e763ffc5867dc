"""How servers are asked and how their streams are read: OpenAI's completions, kvstitch's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.peers.prompts import Prompt
from kvstitch.service.messages.requests import HistoryMode
from loadtest.measurement.event_stream import ServerSentEvent
from loadtest.measurement.streamed_answer import StreamedAnswer


class Dialect(Protocol):
    """One way to ask for a streamed, greedy answer."""

    @property
    def path(self) -> str:
        """Path of the URL."""
        ...

    def body(self, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
        """The JSON body of a request."""
        ...

    def read(self, event: ServerSentEvent, answer: StreamedAnswer, now: float) -> None:
        """Adds the content of an event that arrived at `now` to `answer`."""
        ...


@dataclass(frozen=True)
class Completions:
    """OpenAI's completions with the prompt as token ids.

    Attributes:
        model: its name at the server.
        fields: merged into every body.
        path: path of the URL.
    """

    model: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    path: str = "/v1/completions"

    def body(self, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": list(prompt.ids),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }

    def read(self, event: ServerSentEvent, answer: StreamedAnswer, now: float) -> None:
        if event.data == "[DONE]":
            answer.ended_at = now
            return
        chunk = json.loads(event.data)
        if "error" in chunk:
            answer.error = str(chunk["error"])
            return
        answer.count_usage(chunk.get("usage"))
        text = "".join(str(choice.get("text") or "") for choice in chunk["choices"])
        if text:
            answer.text_at.append(now)
            answer.text += text


@dataclass(frozen=True)
class Kvstitch:
    """kvstitch's own route, with the documents in the order of the prompt.

    Attributes:
        method: fusion method; its parameters are the service's defaults.
        begins: words of the prompt that the service sends as the beginning of the answer.
        history: what becomes of earlier turns behind other documents; None: the service's default.
        path: path of the URL.
    """

    method: str
    begins: str = ""
    history: HistoryMode | None = None
    path: str = "/v1/rag/generate"

    def body(self, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
        return {
            "messages": [{"role": turn.role, "content": turn.text} for turn in prompt.turns],
            "inline_documents": [document.body() for document in prompt.documents],
            "fusion": {"method": self.method},
            "max_tokens": max_tokens,
            "stream": True,
            **({} if self.history is None else {"history": self.history}),
        }

    def read(self, event: ServerSentEvent, answer: StreamedAnswer, now: float) -> None:
        if event.name not in ("token", "done", "error"):
            return
        content = json.loads(event.data)
        if event.name == "token":
            answer.text_at.append(now)
            text = str(content["text"])
            answer.text += text if answer.text else text.removeprefix(self.begins)
        elif event.name == "done":
            answer.count_usage(content["usage"])
            answer.count_cache(content.get("cache"))
            answer.ended_at = now
        else:
            answer.error = event.data[:300]
