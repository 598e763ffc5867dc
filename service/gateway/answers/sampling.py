"""From a request's fields to the worker's `Sampling`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from service.errors import InvalidRequest
from service.gateway.schemas.generate import (
    MAX_GRAMMAR_CHARS,
    GenerateRequest,
    Guided,
    SamplingFields,
)
from service.messages.requests import Sampling

BETWEEN_JSON_TOKENS = r" ?|\n {0,16}"
"""Blanks are allowed, but not without end: small models write them for ever."""

# Tokens of an answer that may be a call or must have a form, where the request does not say: it is
# worth nothing if it is cut off, and models' defaults are made for sentences.
STRUCTURED_MAX_TOKENS = 512


def sampling(
    request: GenerateRequest, *, prompt_tokens: int, room: int, usual: int
) -> tuple[Sampling, list[str]]:
    """Return how the worker chooses the answer's tokens, and warnings for the client.

    Args:
        request: What is asked for.
        prompt_tokens: Length of the prompt.
        room: Tokens that fit behind it.
        usual: Tokens of an answer, where the request does not say.

    Raises:
        InvalidRequest: Fields contradict one another, or what `guided` holds is not valid.
    """
    _check(request)
    warnings = []
    if request.max_tokens is None:
        structured = request.tools is not None or request.guided is not None
        max_tokens = min(max(usual, STRUCTURED_MAX_TOKENS) if structured else usual, room)
    elif (max_tokens := min(request.max_tokens, room)) < request.max_tokens:
        warnings.append(
            f"max_tokens was lowered from {request.max_tokens} to {room}: the prompt has "
            f"{prompt_tokens} tokens"
        )
    made = Sampling(
        max_tokens=max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        logprobs=request.logprobs,
        top_k=request.sampling_top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias={int(token): bias for token, bias in (request.logit_bias or {}).items()},
        min_tokens=request.min_tokens,
        ignore_end=request.ignore_eos,
        stop_ids=request.stop_token_ids or [],
        grammar="" if request.guided is None else grammar(request.guided),
    )
    return made, warnings


def _check(request: SamplingFields) -> None:
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {request.min_tokens}, max_tokens {request.max_tokens}: lower it",
            field="min_tokens",
        )
    if request.guided is None:
        return
    for name in ("min_tokens", "ignore_eos"):
        if getattr(request, name):
            raise InvalidRequest(
                f"{name}: with guided the form of the answer says where it ends: leave it out",
                field=name,
            )


def grammar(guided: Guided) -> str:
    """Return what the answer must match, in llguidance's form.

    Raises:
        InvalidRequest: It is not valid, or uses what is not supported; the message says what.
    """
    name = next(name for name in Guided.model_fields if getattr(guided, name) is not None)
    field = f"guided.{name}"
    try:
        text = _grammar(guided)
    except ValueError as error:
        raise InvalidRequest(f"{field} cannot be read: {error}", field=field) from error
    # Without a tokenizer this finds every fault that is the request's.
    if fault := LLMatcher.validate_grammar(text):
        raise InvalidRequest(f"{field} is not valid or not supported: {fault}", field=field)
    return text


def _grammar(guided: Guided) -> str:
    if guided.json_object:
        return _json({"type": "object"})
    if guided.json_schema is not None:
        return _json(guided.json_schema)
    if guided.regex is not None:
        return LLMatcher.grammar_from_regex(guided.regex)
    if guided.choice is not None:
        texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in guided.choice)
        return LLMatcher.grammar_from_lark(f"start: {texts}")
    assert guided.grammar is not None
    return LLMatcher.grammar_from_lark(any_to_lark(guided.grammar))


def _json(schema: Mapping[str, object]) -> str:
    text = json.dumps(schema)
    if len(text) > MAX_GRAMMAR_CHARS:
        raise ValueError(f"it has {len(text)} characters, the limit is {MAX_GRAMMAR_CHARS}")
    return LLMatcher.grammar_from_json_schema(
        text, overrides={"whitespace_pattern": BETWEEN_JSON_TOKENS}
    )
