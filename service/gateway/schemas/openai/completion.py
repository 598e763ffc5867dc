"""POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from service.gateway.schemas.fields import Unicode
from service.gateway.schemas.generate import Usage
from service.gateway.schemas.openai.common import Details, SampledRequest


class CompletionRequest(SampledRequest):
    """POST /v1/completions: documents are searched for the prompt, which is the question."""

    prompt: (
        Unicode
        | Annotated[
            list[Unicode | int | Annotated[list[int], Field(fail_fast=True)]], Field(fail_fast=True)
        ]
    ) = Field(description="a text, or a list of texts, each of which is answered")
    logprobs: int | None = Field(
        None, ge=0, le=5, description="of the answer's tokens and of this many most likely ones"
    )


class TextLogprobs(BaseModel):
    """Four lists of the same length. A token that is no whole text is written as its bytes,
    `bytes:\\xe2\\x80`; top_logprobs always hold the token itself, too."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


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
