"""What OpenAI's routes have in common, and the list of models."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from kvstitch.records.answers import Attribution, CacheReport, Citation, RetrievalNote, Timing
from service.gateway.schemas.fields import Stops, Unicode
from service.gateway.schemas.generate import Choices, MethodChoice

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


class JsonSchemaFormat(BaseModel):
    model_config = LENIENT

    name: str | None = None
    description: str | None = None
    schema_: dict[str, JsonValue] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """What an answer must be."""

    model_config = LENIENT

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(BaseModel):
    """vLLM's: exactly one of these."""

    model_config = LENIENT

    json_: dict[str, JsonValue] | Unicode | None = Field(None, alias="json")
    regex: Unicode | None = None
    choice: list[Unicode] | None = None
    grammar: Unicode | None = None
    json_object: bool | None = None


class CommonRequest(BaseModel):
    """What every request for an answer has."""

    model_config = LENIENT

    model: Unicode | None = Field(
        None,
        description="one of GET /v1/models, the model or a LoRA adapter; with a preset: "
        "NAME:FUSION; none: the default",
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
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = Field(None, description="token id: from -100 to 100")
    response_format: ResponseFormat | None = None
    top_k: int | None = Field(
        None, ge=-1, le=2**31 - 1, description="vLLM's: of the sampler; 0 and -1: all"
    )
    min_p: float | None = Field(None, ge=0, le=1, description="vLLM's")
    repetition_penalty: float | None = Field(None, gt=0, le=10, description="vLLM's")
    min_tokens: int | None = Field(None, ge=0, description="vLLM's")
    ignore_eos: bool | None = Field(None, description="vLLM's")
    stop_token_ids: list[int] | None = Field(None, max_length=128, description="vLLM's")
    structured_outputs: StructuredOutputs | None = Field(None, description="vLLM's")
    guided_json: dict[str, JsonValue] | Unicode | None = Field(None, description="vLLM's")
    guided_regex: Unicode | None = Field(None, description="vLLM's")
    guided_choice: list[Unicode] | None = Field(None, description="vLLM's")
    guided_grammar: Unicode | None = Field(None, description="vLLM's")


class Details(BaseModel):
    """`kvstitch` in an answer: where it came from and what it cost."""

    citations: list[Citation] | None = None
    found: bool = Field(description="whether the prompt held any passage")
    retrieval: RetrievalNote | None = None
    attributions: list[Attribution] | None = None
    finish_reason: str = Field(description="as OpenAI's, or deadline")
    cache: CacheReport
    stages: dict[str, float]
    timing: Timing
    adapter: str | None = Field(None, description="the LoRA adapter that answered")
    fusion: dict[str, Any]
    eviction: dict[str, Any] | None
    seed: int | None
    warnings: list[str]


class ModelOut(BaseModel):
    """A model as OpenAI lists it; `fusion` is what its preset stands for, `parent` the model that
    it is a LoRA adapter of."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "kvstitch"
    parent: str | None = None
    fusion: dict[str, Any] | None = None
    details: dict[str, Any] | None = Field(None, description="of the model itself")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelOut]
