"""Translates whole answers into chat.completion and text_completion objects.

The object `kvstitch` holds what OpenAI has no field for. With several choices it is the first
one's, with the warnings of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.gateway.http.openai.annotations import url_annotations
from service.gateway.http.openai.envelope import Envelope, finish_reason, total_usage
from service.gateway.http.openai.logprob_translation import chat_logprobs, text_logprobs
from service.gateway.schemas.answer import GenerateResponse
from service.gateway.schemas.openai.chat import (
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    Completion,
    TextChoice,
    ToolCallOut,
)
from service.gateway.tool_calls.call_parser import CallParser
from service.gateway.tool_calls.parsed_answer import ParsedAnswer


def completion(
    envelope: Envelope, responses: Sequence[GenerateResponse]
) -> ChatCompletion | Completion:
    """The response that holds these answers, in the order of their indices."""
    parsers = [_parsed(envelope, response) for response in responses]
    first = responses[0]
    details = envelope.details(first, parsers[0], first.citations if envelope.citations else None)
    for response, parser in zip(responses[1:], parsers[1:], strict=True):
        found = envelope.details(response, parser).warnings
        details.warnings += [text for text in found if text not in details.warnings]
    common: dict[str, Any] = {
        "id": envelope.public_id,
        "created": envelope.created,
        "model": envelope.model,
        "usage": total_usage(responses, envelope.prompts),
        "kvstitch": details,
    }
    if envelope.chat:
        answers = enumerate(zip(responses, parsers, strict=True))
        return ChatCompletion(
            choices=[_chat_choice(envelope, n, *each) for n, each in answers], **common
        )
    texts = [
        TextChoice(
            index=number,
            text=response.text,
            logprobs=text_logprobs(response.logprobs),
            finish_reason="stop" if response.finish_reason == "stop" else "length",
        )
        for number, response in enumerate(responses)
    ]
    return Completion(choices=texts, **common)


def _parsed(envelope: Envelope, response: GenerateResponse) -> CallParser | None:
    parser = envelope.parser(early=False)
    if parser is not None:
        parser.push(response.text)
        parser.finish(cut=finish_reason(response.finish_reason) == "length")
    return parser


def _chat_choice(
    envelope: Envelope, number: int, response: GenerateResponse, parser: CallParser | None
) -> ChatChoice:
    answer = ParsedAnswer(response.text) if parser is None else parser.answer
    calls = [
        ToolCallOut(id=call.id, function={"name": call.name, "arguments": call.arguments})
        for call in answer.calls
    ]
    return ChatChoice(
        index=number,
        message=AnswerMessage(
            content=None if calls and not answer.text else answer.text,
            annotations=url_annotations(response, envelope.links, answer.text),
            tool_calls=calls or None,
        ),
        logprobs=chat_logprobs(response.logprobs),
        finish_reason=finish_reason(response.finish_reason, parser),
    )
