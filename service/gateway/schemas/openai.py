"""Requests and responses of OpenAI's clients.

Requests are lenient where OpenAI's servers are: unknown fields are ignored. Known fields that are
not supported are refused by `http.openai.request_translation`. The extension object `kvstitch` is
strict, like the rest of this service.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.gateway.schemas.fields import Stops, Unicode
from service.gateway.schemas.generate import (
    MAX_MESSAGES,
    CacheReport,
    Choices,
    Citation,
    MethodChoice,
    Timing,
    Usage,
)
from service.gateway.schemas.logprobs import MAX_LOGPROBS, TokenLogprob

# Unknown fields are kept, so that known ones that are not supported can be refused.
LENIENT = ConfigDict(extra="allow", strict=True)


class ContentPart(BaseModel):
    """A piece of a message; only pieces of type text are taken."""

    model_config = LENIENT

    type: str
    text: Unicode | None = None


class ChatMessage(BaseModel):
    model_config = LENIENT

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Unicode | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None


class StreamOptions(BaseModel):
    model_config = LENIENT

    include_usage: bool | None = None


class Extension(Choices):
    """`kvstitch` in the body (`extra_body` of the clients): what to answer from, and how."""

    fusion: MethodChoice | None = Field(None, description="goes before what the model's name says")
    include_citations: bool = Field(True, description="the answer's kvstitch object holds them")


class _Sampled(BaseModel):
    """What both kinds of request have."""

    model_config = LENIENT

    model: Unicode | None = Field(
        None, description="one of GET /v1/models; with a preset: NAME:FUSION; none: the default"
    )
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=10, description="0, the default: greedy")
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: Stops = Field(default_factory=list)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    kvstitch: Extension | None = None


class ChatRequest(_Sampled):
    """POST /v1/chat/completions: documents are searched for the last user message."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] = Field(
        min_length=1, max_length=MAX_MESSAGES
    )
    max_completion_tokens: int | None = Field(None, ge=1, description="goes before max_tokens")
    logprobs: bool | None = Field(None, description="of the answer's tokens")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="with logprobs: of this many most likely ones, too"
    )


class CompletionRequest(_Sampled):
    """POST /v1/completions: documents are searched for the prompt, which is the question."""

    prompt: (
        Unicode
        | Annotated[
            list[Unicode | int | Annotated[list[int], Field(fail_fast=True)]], Field(fail_fast=True)
        ]
    ) = Field(description="a text, or a list of one")
    logprobs: int | None = Field(
        None, ge=0, le=5, description="of the answer's tokens and of this many most likely ones"
    )


class Details(BaseModel):
    """`kvstitch` in an answer: where it came from and what it cost."""

    citations: list[Citation] | None = None
    finish_reason: str = Field(description="as OpenAI's, or deadline")
    cache: CacheReport
    stages: dict[str, float]
    timing: Timing
    fusion: dict[str, Any]
    eviction: dict[str, Any] | None
    seed: int | None
    warnings: list[str]


class AnswerMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(BaseModel):
    """Four lists of the same length. A token that is no whole text is written as its bytes,
    `bytes:\\xe2\\x80`; top_logprobs always hold the token itself, too."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class ChatChoice(BaseModel):
    index: int = 0
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    kvstitch: Details


class TextChoice(BaseModel):
    index: int = 0
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: Literal["stop", "length"]


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    kvstitch: Details


class ModelOut(BaseModel):
    """A model as OpenAI lists it; `fusion` is what its preset stands for."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "kvstitch"
    fusion: dict[str, Any] | None = None
    details: dict[str, Any] | None = Field(None, description="of the model itself")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelOut]
