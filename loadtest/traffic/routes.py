"""The routes that can be loaded: how to write a request for each, and how to read its stream.

rag      /v1/rag/generate          named events: sources, token …, done
chat     /v1/chat/completions      OpenAI's chunks, with the service's extension `kvstitch`
openai   /v1/chat/completions      any OpenAI-like server: documents are part of the message
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from loadtest.errors import InvalidInput
from loadtest.measurement.event_stream import ServerSentEvent
from loadtest.measurement.streamed_answer import StreamedAnswer


@dataclass(frozen=True)
class CorpusDocument:
    """A document of the corpus."""

    doc_id: str
    title: str
    text: str

    def body(self) -> dict[str, str]:
        """Its JSON form."""
        return {"doc_id": self.doc_id, "title": self.title, "text": self.text}


@dataclass(frozen=True)
class LoadRequest:
    """One request.

    Attributes:
        question: the question.
        documents: sent along, in this order; without any, the service searches its documents.
        max_tokens: longest answer in tokens; None: the server's default.
        system: a system message; empty: none.
    """

    question: str
    documents: tuple[CorpusDocument, ...] = ()
    max_tokens: int | None = None
    system: str = ""


@dataclass(frozen=True)
class MethodUnderTest:
    """A fusion method.

    Attributes:
        label: its name in reports.
        fusion: sent as `fusion`; None: nothing is sent, and the service uses its default.
    """

    label: str
    fusion: Mapping[str, Any] | None = None

    @classmethod
    def parse(cls, text: str) -> MethodUnderTest:
        """Parse `a3`, or `a3:0.3` with a ratio.

        Raises:
            ValueError: the text has no name, or its ratio is not a number.
        """
        name, _, ratio = text.partition(":")
        if not name:
            raise InvalidInput(f"{text!r} names no method: write NAME or NAME:RATIO")
        return cls(text, {"method": name, **({"ratio": float(ratio)} if ratio else {})})


class Route(Protocol):
    """One way to ask a question."""

    @property
    def path(self) -> str:
        """Path of the URL."""
        ...

    def body(self, request: LoadRequest, method: MethodUnderTest) -> dict[str, Any]:
        """The JSON body of a streamed request."""

    def read(self, event: ServerSentEvent, answer: StreamedAnswer, now: float) -> None:
        """Add the content of an event that arrived at `now` to `answer`.

        Raises:
            ValueError: the event is not JSON.
            KeyError: it lacks a field that this route sends.
            TypeError: a field has another type.
        """


@dataclass(frozen=True)
class RagRoute:
    """The service's own route.

    Prompts are computed even if the same one was answered before: a small set of questions would
    else measure the prefix cache, and not the methods.

    Attributes:
        fields: merged into every body, e.g. `{"top_k": 5}`.
        path: path of the URL.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    path: str = "/v1/rag/generate"

    def body(self, request: LoadRequest, method: MethodUnderTest) -> dict[str, Any]:
        asked: dict[str, Any] = {"question": request.question}
        if request.system:
            asked = {"messages": _messages(request.system, request.question)}
        computed = {"prefix_cache": False, **self.fields}
        return {**computed, **asked, **_choices(request, method), **_limit(request)}

    def read(self, event: ServerSentEvent, answer: StreamedAnswer, now: float) -> None:
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
    """OpenAI's chat route.

    Attributes:
        model: name of the model; empty: the server's default.
        plain: send nothing that only this service understands.
        fields: merged into `kvstitch`, or into the body of a plain request.
        path: path of the URL.
    """

    model: str = ""
    plain: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)
    path: str = "/v1/chat/completions"

    def body(self, request: LoadRequest, method: MethodUnderTest) -> dict[str, Any]:
        question = request.question
        extra: dict[str, Any]
        if self.plain:
            texts = [f"{document.title}\n{document.text}" for document in request.documents]
            question = "\n".join([*texts, question])
            extra = {**self.fields}
        else:
            computed = {"prefix_cache": False, **self.fields}
            extra = {"kvstitch": {**computed, **_choices(request, method)}}
        return {
            **({"model": self.model} if self.model else {}),
            "messages": _messages(request.system, question),
            "temperature": 0,
            "stream_options": {"include_usage": True},
            **extra,
            **_limit(request),
        }

    def read(self, event: ServerSentEvent, answer: StreamedAnswer, now: float) -> None:
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


def _choices(request: LoadRequest, method: MethodUnderTest) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if request.documents:
        out["inline_documents"] = [document.body() for document in request.documents]
    if method.fusion is not None:
        out["fusion"] = dict(method.fusion)
    return out


def _limit(request: LoadRequest) -> dict[str, Any]:
    limit = {} if request.max_tokens is None else {"max_tokens": request.max_tokens}
    return {"stream": True, **limit}


def _messages(system: str, question: str) -> list[dict[str, str]]:
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": question}]


def _message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)
