"""Translates OpenAI's requests into GenerateRequest, so that all answers are made in one way.

Unknown fields are ignored. Known fields that would change the answer but are not supported here
are refused, so that nobody mistakes an answer for something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from service.errors import InvalidRequest, Unsupported
from service.gateway.http.openai.model_presets import preset_fusion
from service.gateway.schemas import GenerateRequest
from service.gateway.schemas.generate import Message
from service.gateway.schemas.openai import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    ContentPart,
    Extension,
)
from service.messages import Ready


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


def _empty(value: Any) -> bool:
    return value in (None, [], {}, False, 0, "")


# For each field that is not supported: whether a value asks for nothing, and is accepted.
HARMLESS: dict[str, Callable[[Any], bool]] = {
    "n": _one_of(None, 1),
    "best_of": _one_of(None, 1),
    "response_format": _one_of(None, {"type": "text"}),
    "modalities": _one_of(None, [], ["text"]),
    "tool_choice": _one_of(None, "none", "auto"),
    "function_call": _one_of(None, "none", "auto"),
    **dict.fromkeys(
        (
            *("tools", "functions", "top_logprobs", "logit_bias", "echo", "suffix"),
            *("presence_penalty", "frequency_penalty", "audio", "web_search_options"),
        ),
        _empty,
    ),
}


def from_chat(body: ChatRequest, model: str, ready: Ready) -> GenerateRequest:
    """Translate a chat completion request.

    Raises:
        ModelNotFound: There is no such model or preset.
        Unsupported: A field asks for something that is not supported.
        InvalidRequest: A field is wrong.
    """
    _refuse_unsupported(body.model_extra)
    messages = [_message(number, message) for number, message in enumerate(body.messages)]
    asked = {
        "messages": messages,
        "max_tokens": body.max_completion_tokens or body.max_tokens,
        "logprobs": _chat_logprobs(body),
    }
    return _request(body, model, ready, **asked)


def from_completion(body: CompletionRequest, model: str, ready: Ready) -> GenerateRequest:
    """Translate a text completion request.

    Raises:
        ModelNotFound: There is no such model or preset.
        Unsupported: A field asks for something that is not supported.
        InvalidRequest: A field is wrong.
    """
    _refuse_unsupported(body.model_extra)
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if len(prompts) != 1 or not isinstance(prompts[0], str):
        raise Unsupported(
            "prompt must be one text: send several, or token ids, as requests of their own",
            field="prompt",
        )
    asked = {"question": prompts[0], "max_tokens": body.max_tokens, "logprobs": body.logprobs}
    return _request(body, model, ready, **asked)


def _chat_logprobs(body: ChatRequest) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidRequest(
            "top_logprobs needs logprobs: send logprobs: true, too", field="top_logprobs"
        )
    return None


def _request(
    body: ChatRequest | CompletionRequest, model: str, ready: Ready, **asked: Any
) -> GenerateRequest:
    chosen = body.kvstitch or Extension.model_validate({})
    named = preset_fusion(body.model, model, ready)
    fields: dict[str, Any] = {
        name: getattr(chosen, name)
        for name in chosen.model_fields_set - {"fusion", "include_citations"}
    }
    sampled = {
        "fusion": chosen.fusion or named,
        "temperature": body.temperature,
        "top_p": body.top_p,
        # OpenAI's seeds may be negative, the sampler's must not.
        "seed": None if body.seed is None else body.seed % 2**63,
        "stream": body.stream,
        "stop": body.stop,
    }
    fields |= {name: value for name, value in sampled.items() if value is not None}
    return GenerateRequest(**fields, **asked)


def _refuse_unsupported(extra: Mapping[str, Any] | None) -> None:
    for name, value in (extra or {}).items():
        if name in HARMLESS and not HARMLESS[name](value):
            raise Unsupported(f"{name} is not supported here: leave it out", field=name)


def _message(number: int, message: ChatMessage) -> Message:
    where = f"messages[{number}]"
    if message.role == "tool" or message.role == "function":  # not `in`, which mypy cannot narrow
        raise Unsupported(f"{where}.role {message.role} is not supported", field=f"{where}.role")
    _refuse_calls(where, message.model_extra)
    role = "system" if message.role == "developer" else message.role
    return Message(role=role, content=_text(f"{where}.content", message.content))


def _refuse_calls(where: str, extra: Mapping[str, Any] | None) -> None:
    for name in ("tool_calls", "function_call", "audio"):
        if (extra or {}).get(name):
            raise Unsupported(f"{where}.{name} is not supported", field=f"{where}.{name}")


def _text(where: str, content: str | list[ContentPart] | None) -> str:
    if content is None:
        raise InvalidRequest(f"{where} is missing: send the message's text", field=where)
    if isinstance(content, str):
        return content
    for number, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise Unsupported(
                f"{where}[{number}] is not text: only text is supported",
                field=f"{where}[{number}]",
            )
    return "".join(part.text or "" for part in content)
