"""Translates answers into what OpenAI's clients expect: whole, or as chunks of a stream.

    chat        chat.completion           chat.completion.chunk: role, text …, finish, [usage]
    text        text_completion           the same without roles

The object `kvstitch` holds what OpenAI has no field for: citations in the first chunk, before the
first token; cache, times and warnings in the last chunk that has a choice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Literal

from service.errors import KvstitchError
from service.gateway.answers.answer_stream import AnswerEvent, Finished, Sources, TextDelta
from service.gateway.http.openai.logprob_translation import chat_logprobs, text_logprobs
from service.gateway.http.sse import data_line
from service.gateway.problems import error_object
from service.gateway.schemas import Citation, GenerateResponse
from service.gateway.schemas.logprobs import TokenLogprob
from service.gateway.schemas.openai import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    Completion,
    Details,
    TextChoice,
)

DONE = "data: [DONE]\n\n"
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Envelope:
    """What all chunks of an answer have in common.

    Attributes:
        id: Of the answer.
        model: The name that the client used.
        chat: Chat completion, else text completion.
        citations: Whether the answer holds citations.
        created: Unix seconds.
    """

    id: str
    model: str
    chat: bool
    citations: bool
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def public_id(self) -> str:
        """The id with OpenAI's prefix."""
        return ("chatcmpl-" if self.chat else "cmpl-") + self.id.removeprefix("rag-")


def completion(envelope: Envelope, response: GenerateResponse) -> ChatCompletion | Completion:
    reason = finish_reason(response.finish_reason)
    common: dict[str, Any] = {
        "id": envelope.public_id,
        "created": envelope.created,
        "model": envelope.model,
        "usage": response.usage,
        "kvstitch": _details(response, response.citations if envelope.citations else None),
    }
    if envelope.chat:
        choice = ChatChoice(
            message=AnswerMessage(content=response.text),
            logprobs=chat_logprobs(response.logprobs),
            finish_reason=reason,
        )
        return ChatCompletion(choices=[choice], **common)
    text = TextChoice(
        text=response.text, logprobs=text_logprobs(response.logprobs), finish_reason=reason
    )
    return Completion(choices=[text], **common)


def _details(response: GenerateResponse, citations: list[Citation] | None) -> Details:
    return Details(
        citations=citations,
        **{name: getattr(response, name) for name in Details.model_fields if name != "citations"},
    )


def finish_reason(reason: str) -> FinishReason:
    """OpenAI has no deadline: an answer that one cut short counts as too long."""
    return "stop" if reason == "stop" else "length"


class CompletionChunks:
    """Framing of a stream, without `id:` and `event:` lines: some clients cannot parse them."""

    def __init__(self, envelope: Envelope, *, include_usage: bool) -> None:
        self._envelope = envelope
        self._include_usage = include_usage
        self._held = b""

    def event(self, event: AnswerEvent) -> bytes:
        match event:
            case Sources(citations):
                shown = [c.model_dump(mode="json", exclude_none=True) for c in citations]
                extra = {"kvstitch": {"citations": shown}} if self._envelope.citations else {}
                first = {"role": "assistant", "content": ""} if self._envelope.chat else ""
                chunk = self._chunk([self._choice(first, None)], extra).encode()
                # A chunk that says nothing waits for the first text: who measures the time to the
                # first token takes the first chunk for it.
                self._held, chunk = (b"", chunk) if extra and citations else (chunk, b"")
                return chunk
            case TextDelta(text, logprobs):
                delta = {"content": text} if self._envelope.chat else text
                return (
                    self._released() + self._chunk([self._choice(delta, None, logprobs)]).encode()
                )
            case Finished(response):
                return self._released() + self._end(response).encode()

    def _released(self) -> bytes:
        held, self._held = self._held, b""
        return held

    def error(self, error: KvstitchError) -> bytes:
        """The last line of a stream that failed; no [DONE] follows."""
        return self._released() + data_line({"error": error_object(error)}).encode()

    def _end(self, response: GenerateResponse) -> str:
        facts = _details(response, None).model_dump(mode="json", exclude={"citations"})
        empty: Any = {} if self._envelope.chat else ""
        choice = self._choice(empty, finish_reason(response.finish_reason))
        out = self._chunk([choice], {"kvstitch": facts})
        if self._include_usage:
            out += self._chunk([], {"usage": response.usage.model_dump(mode="json")})
        return out + DONE

    def _choice(
        self, delta: Any, reason: FinishReason | None, logprobs: list[TokenLogprob] | None = None
    ) -> dict[str, Any]:
        chat = self._envelope.chat
        shown = chat_logprobs(logprobs) if chat else text_logprobs(logprobs)
        return {
            "index": 0,
            "delta" if chat else "text": delta,
            "logprobs": None if shown is None else shown.model_dump(),
            "finish_reason": reason,
        }

    def _chunk(self, choices: list[dict[str, Any]], extra: dict[str, Any] | None = None) -> str:
        return data_line(
            {
                "id": self._envelope.public_id,
                "object": "chat.completion.chunk" if self._envelope.chat else "text_completion",
                "created": self._envelope.created,
                "model": self._envelope.model,
                "choices": choices,
                # As OpenAI: null in every chunk but the last, if usage was asked for.
                **({"usage": None} if self._include_usage else {}),
                **(extra or {}),
            }
        )
