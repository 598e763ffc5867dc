"""Answers as chat.completion and text_completion objects, whole or as a stream of chunks.

    chat        chat.completion.chunk: role, text or pieces of calls …, finish, [usage], [DONE]
    text        text_completion: the same without roles and calls

Chunks of several choices come as they are made, each with its index. The object `kvstitch` holds
what OpenAI has no field for. In a stream it holds citations in a choice's first chunk, before the
first token; in its last cache, times and warnings, and the citations again with what the answer
uses of them. In a whole response with several choices it is the first one's, with the warnings of
all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvstitch.records.answers import Answer, Citation, TokenLogprob
from kvstitch.service.errors import KvstitchError
from kvstitch.service.gateway.answers.answer_service import NumberedEvent
from kvstitch.service.gateway.answers.answer_stream import Finished, Sources, TextDelta
from kvstitch.service.gateway.http.answering import data_line, json_value
from kvstitch.service.gateway.http.openai.envelope import (
    Envelope,
    chat_logprobs,
    finish_reason,
    text_logprobs,
)
from kvstitch.service.gateway.http.problems import openai_error
from kvstitch.service.gateway.schemas.openai import ChatRequest
from kvstitch.service.gateway.schemas.openai_answers import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    Completion,
    FinishReason,
    TextChoice,
    ToolCallOut,
)
from kvstitch.service.gateway.tool_calls.call_parser import (
    CallArguments,
    CallParser,
    CallStarted,
    ParsedAnswer,
    Piece,
    Text,
)

DONE = "data: [DONE]\n\n"


@dataclass
class _Choice:
    """One choice so far. held: a chunk that waits for the first text; logprobs: of text that is
    not sent yet."""

    parser: CallParser | None
    held: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    response: Answer | None = None


class CompletionWriter:
    """Answers as one object, or as chunks without `id:` and `event:` lines: some clients cannot
    parse them."""

    def __init__(self, envelope: Envelope) -> None:
        asked = envelope.asked
        self._envelope = envelope
        self._chat = isinstance(asked.body, ChatRequest)
        self._id = ("chatcmpl-" if self._chat else "cmpl-") + envelope.bare_id
        options = asked.body.stream_options
        self._include_usage = bool(options and options.include_usage)
        self._choices = [_Choice(envelope.parser()) for _ in asked.requests]

    def whole(self, results: Sequence[Answer]) -> ChatCompletion | Completion:
        envelope, first = self._envelope, results[0]
        parsers = [choice.parser for choice in self._choices]
        for parser, result in zip(parsers, results, strict=True):
            if parser is not None:
                parser.push(result.text)
                parser.finish(cut=finish_reason(result.finish_reason) == "length")
        cited = first.citations if envelope.citations else None
        details = envelope.details(first, parsers[0], cited)
        for result, parser in zip(results[1:], parsers[1:], strict=True):
            found = envelope.details(result, parser).warnings
            details.warnings.extend([text for text in found if text not in details.warnings])
        common: dict[str, Any] = {
            "id": self._id,
            "created": envelope.created,
            "model": envelope.model,
            "usage": envelope.usage(results),
            "kvstitch": details,
        }
        numbered = enumerate(results)
        if self._chat:
            chats = [self._chat_choice(n, result, parsers[n]) for n, result in numbered]
            return ChatCompletion(choices=chats, **common)
        texts = [
            TextChoice(
                index=number,
                text=result.text,
                logprobs=text_logprobs(result.logprobs),
                finish_reason="stop" if result.finish_reason == "stop" else "length",
            )
            for number, result in numbered
        ]
        return Completion(choices=texts, **common)

    def _chat_choice(self, number: int, result: Answer, parser: CallParser | None) -> ChatChoice:
        answer = ParsedAnswer(result.text) if parser is None else parser.answer
        calls = [
            ToolCallOut(id=call.id, function={"name": call.name, "arguments": call.arguments})
            for call in answer.calls
        ]
        return ChatChoice(
            index=number,
            message=AnswerMessage(
                content=None if calls and not answer.text else answer.text,
                annotations=self._envelope.annotations(result, answer.text),
                tool_calls=calls or None,
            ),
            logprobs=chat_logprobs(result.logprobs),
            finish_reason=finish_reason(result.finish_reason, parser),
        )

    def event(self, event: NumberedEvent) -> bytes:
        number, what = event
        choice = self._choices[number]
        match what:
            case Sources(citations):
                out = self._first(number, choice, citations)
            case TextDelta(text, logprobs):
                out = self._release(choice) + self._text(number, choice, text, logprobs)
            case Finished(response):
                choice.response = response
                out = self._release(choice) + self._end(number, choice, response)
        return out.encode()

    def error(self, error: KvstitchError) -> bytes:
        """Return the last line of a stream that failed; no [DONE] follows."""
        held = "".join(self._release(choice) for choice in self._choices)
        return (held + data_line({"error": openai_error(error)})).encode()

    def _first(self, number: int, choice: _Choice, citations: list[Citation]) -> str:
        shown = [json_value(c, exclude_none=True) for c in citations]
        extra = {"kvstitch": {"citations": shown}} if self._envelope.citations else {}
        first: Any = {"role": "assistant", "content": ""} if self._chat else ""
        chunk = self._chunk([self._choice(number, first)], extra)
        if extra and citations:
            return chunk
        # A chunk that says nothing waits for the first text: who measures the time to the first
        # token takes the first chunk for it.
        choice.held = chunk
        return ""

    def _release(self, choice: _Choice) -> str:
        held, choice.held = choice.held, ""
        return held

    def _text(
        self, number: int, choice: _Choice, text: str, logprobs: list[TokenLogprob] | None
    ) -> str:
        if choice.parser is None:
            delta: Any = {"content": text} if self._chat else text
            return self._chunk([self._choice(number, delta, logprobs=logprobs)])
        choice.logprobs += logprobs or []
        pieces = choice.parser.push(text)
        return self._pieces(number, choice, pieces, with_logprobs=logprobs is not None)

    def _pieces(
        self, number: int, choice: _Choice, pieces: list[Piece], *, with_logprobs: bool
    ) -> str:
        out = ""
        for piece in pieces:
            logprobs = None
            if with_logprobs:
                logprobs, choice.logprobs = choice.logprobs, []
            out += self._chunk([self._choice(number, _delta(piece), logprobs=logprobs)])
        return out

    def _end(self, number: int, choice: _Choice, response: Answer) -> str:
        out = ""
        if choice.parser is not None:
            cut = finish_reason(response.finish_reason) == "length"
            pieces = choice.parser.finish(cut=cut)
            wanted = response.logprobs is not None
            out += self._pieces(number, choice, pieces, with_logprobs=wanted)
        # Only now is known which passages the answer uses.
        cited = response.citations if self._envelope.citations and response.attributions else None
        details = self._envelope.details(response, choice.parser, cited)
        without = {"citations"} if cited is None else None
        facts = json_value(details, exclude=without)
        last: Any = self._last_delta(choice, response) if self._chat else ""
        reason = finish_reason(response.finish_reason, choice.parser)
        out += self._chunk([self._choice(number, last, reason=reason)], {"kvstitch": facts})
        ended = [each.response for each in self._choices if each.response is not None]
        if len(ended) < len(self._choices):
            return out
        if self._include_usage:
            usage = self._envelope.usage(ended)
            out += self._chunk([], {"usage": json_value(usage)})
        return out + DONE

    def _last_delta(self, choice: _Choice, response: Answer) -> dict[str, Any]:
        text = response.text if choice.parser is None else choice.parser.answer.text
        found = self._envelope.annotations(response, text)
        return {"annotations": [each.model_dump() for each in found]} if found else {}

    def _choice(
        self,
        number: int,
        delta: Any,
        *,
        reason: FinishReason | None = None,
        logprobs: list[TokenLogprob] | None = None,
    ) -> dict[str, Any]:
        chat = self._chat
        shown = chat_logprobs(logprobs) if chat else text_logprobs(logprobs)
        return {
            "index": number,
            "delta" if chat else "text": delta,
            "logprobs": None if shown is None else shown.model_dump(),
            "finish_reason": reason,
        }

    def _chunk(self, choices: list[dict[str, Any]], extra: dict[str, Any] | None = None) -> str:
        return data_line(
            {
                "id": self._id,
                "object": "chat.completion.chunk" if self._chat else "text_completion",
                "created": self._envelope.created,
                "model": self._envelope.model,
                "choices": choices,
                # As OpenAI: null in every chunk but the last, if usage was asked for.
                **({"usage": None} if self._include_usage else {}),
                **(extra or {}),
            }
        )


def _delta(piece: Piece) -> dict[str, Any]:
    match piece:
        case Text(text):
            return {"content": text}
        case CallStarted(index, id, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
