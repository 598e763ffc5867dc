"""The routes that are loaded: how a request is written for each, how its stream is read.

    rag      /v1/rag/generate          named events: sources, token …, done
    chat     /v1/chat/completions      OpenAI's chunks, with the service's extension `kvstitch`
    openai   /v1/chat/completions      of any OpenAI-like server: documents are part of the message

Knows no HTTP client and no clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from loadtest.measurement.event_stream import Event
from loadtest.measurement.streamed_answer import StreamedAnswer


@dataclass(frozen=True)
class Document:
    """A text that an answer is given from."""

    doc_id: str
    title: str
    text: str

    def body(self) -> dict[str, str]:
        return {"doc_id": self.doc_id, "title": self.title, "text": self.text}


@dataclass(frozen=True)
class Request:
    """One question. With documents they are sent along, in this order; without, the service
    searches."""

    question: str
    documents: tuple[Document, ...] = ()
    max_tokens: int | None = None
    system: str = ""
    """A system message; empty: none."""


@dataclass(frozen=True)
class Method:
    """A fusion method by its name in reports, and what is sent as `fusion`."""

    label: str
    fusion: Mapping[str, Any] | None = None
    """None: nothing is sent, the service's default answers."""

    @classmethod
    def parse(cls, text: str) -> Method:
        """`a3`, or `a3:0.3` with a ratio. Raises ValueError."""
        name, _, ratio = text.partition(":")
        if not name:
            raise ValueError(f"{text!r} names no method: write NAME or NAME:RATIO")
        return cls(text, {"method": name, **({"ratio": float(ratio)} if ratio else {})})


class Route(Protocol):
    """One way to ask."""

    @property
    def path(self) -> str: ...

    def body(self, request: Request, method: Method) -> dict[str, Any]:
        """The JSON of a streamed request."""

    def read(self, event: Event, answer: StreamedAnswer, now: float) -> None:
        """Writes into `answer` what an event that arrived at `now` says.

        Raises ValueError, KeyError or TypeError if it is not what this route streams.
        """


@dataclass(frozen=True)
class RagRoute:
    """The service's own."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """Merged into every body, e.g. {"top_k": 5}."""
    path: str = "/v1/rag/generate"

    def body(self, request: Request, method: Method) -> dict[str, Any]:
        asked: dict[str, Any] = {"question": request.question}
        if request.system:
            asked = {"messages": _messages(request.system, request.question)}
        return {**self.fields, **asked, **_choices(request, method), **_limit(request)}

    def read(self, event: Event, answer: StreamedAnswer, now: float) -> None:
        if event.name == "token":
            answer.text_at.append(now)
        elif event.name == "done":
            done = json.loads(event.data)
            answer.count_usage(done["usage"])
            answer.count_cache(done.get("cache"))
            answer.ended_at = now
        elif event.name == "error":
            answer.error = _message(json.loads(event.data))


@dataclass(frozen=True)
class ChatRoute:
    """OpenAI's chat. `plain`: without anything of this service's own."""

    model: str = ""
    """Empty: the server's default."""
    plain: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Merged into `kvstitch`, or into the body of a plain request."""
    path: str = "/v1/chat/completions"

    def body(self, request: Request, method: Method) -> dict[str, Any]:
        question = request.question
        extra: dict[str, Any]
        if self.plain:
            texts = [f"{document.title}\n{document.text}" for document in request.documents]
            question = "\n".join([*texts, question])
            extra = {**self.fields}
        else:
            extra = {"kvstitch": {**self.fields, **_choices(request, method)}}
        return {
            **({"model": self.model} if self.model else {}),
            "messages": _messages(request.system, question),
            "temperature": 0,
            "stream_options": {"include_usage": True},
            **extra,
            **_limit(request),
        }

    def read(self, event: Event, answer: StreamedAnswer, now: float) -> None:
        if event.data == "[DONE]":
            answer.ended_at = now
            return
        chunk = json.loads(event.data)
        if "error" in chunk:
            answer.error = _message(chunk)
            return
        answer.count_usage(chunk.get("usage"))
        answer.count_cache((chunk.get("kvstitch") or {}).get("cache"))
        if any((choice.get("delta") or {}).get("content") for choice in chunk["choices"]):
            answer.text_at.append(now)


def _choices(request: Request, method: Method) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if request.documents:
        out["inline_documents"] = [document.body() for document in request.documents]
    if method.fusion is not None:
        out["fusion"] = dict(method.fusion)
    return out


def _limit(request: Request) -> dict[str, Any]:
    limit = {} if request.max_tokens is None else {"max_tokens": request.max_tokens}
    return {"stream": True, **limit}


def _messages(system: str, question: str) -> list[dict[str, str]]:
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": question}]


def _message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)
