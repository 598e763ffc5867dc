"""What the OpenAI routes have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from service.gateway.schemas.fields import Stops, Unicode
from service.gateway.schemas.generate import (
    CacheReport,
    Choices,
    Citation,
    MethodChoice,
    Timing,
)

# Other fields are kept, so that `http.openai.field_rules` can say what becomes of each.
LENIENT = ConfigDict(extra="allow", strict=True)
MAX_CHOICES = 16


class StreamOptions(BaseModel):
    model_config = LENIENT

    include_usage: bool | None = None


class Extension(Choices):
    """`kvstitch` in the body (`extra_body` of the clients): what to answer from, and how."""

    fusion: MethodChoice | None = Field(None, description="goes before what the model's name says")
    include_citations: bool = Field(True, description="the answer's kvstitch object holds them")


class CommonRequest(BaseModel):
    """What every request for an answer has."""

    model_config = LENIENT

    model: Unicode | None = Field(
        None, description="one of GET /v1/models; with a preset: NAME:FUSION; none: the default"
    )
    temperature: float | None = Field(None, ge=0, le=10, description="0, the default: greedy")
    top_p: float | None = Field(None, gt=0, le=1)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    kvstitch: Extension | None = None


class SampledRequest(CommonRequest):
    """What chat and text completions share."""

    max_tokens: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: Stops = Field(default_factory=list)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="answers to each prompt")


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
