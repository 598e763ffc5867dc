"""What clients send and get, as pydantic models. Knows no use case.

Requests are strict: an unknown field or a number as a string is an error that names it.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

STRICT = ConfigDict(extra="forbid", strict=True)
MAX_STOPS = 16
MAX_STOP_CHARS = 256


class MethodChoice(BaseModel):
    """A method by name; every other field is a parameter of it (see GET /v1/methods)."""

    model_config = ConfigDict(extra="allow", strict=True)

    method: str

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def _default_fusion() -> MethodChoice:
    return MethodChoice.model_validate({"method": "a3", "ratio": 0.15})


def _encodable(value: Any) -> Any:
    """JSON can spell half a surrogate pair (a lone \\ud800), which is no text."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair: send valid Unicode") from None
    return value


def _as_list(value: Any) -> Any:
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


Unicode = Annotated[str, AfterValidator(_encodable)]
StopString = Annotated[
    str, Field(min_length=1, max_length=MAX_STOP_CHARS), AfterValidator(_encodable)
]
DocId = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_encodable)]
Title = Annotated[str, Field(max_length=2048), AfterValidator(_encodable)]
Stops = Annotated[list[StopString], Field(max_length=MAX_STOPS), BeforeValidator(_as_list)]


class GenerateRequest(BaseModel):
    """POST /v1/rag/generate. Fields left out take the model's defaults."""

    model_config = STRICT

    question: Unicode
    top_k: int | None = Field(None, ge=0, description="passages to answer from; 0: none")
    documents: list[Unicode] | None = Field(None, description="answer from these documents only")
    fusion: MethodChoice = Field(default_factory=_default_fusion)
    eviction: MethodChoice | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(0.0, ge=0, le=10, description="0: greedy")
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=0, le=2**63 - 1)
    stop: Stops = Field(default_factory=list, description="a string or a list of strings")
    stream: bool = False
    include_text: bool = Field(False, description="citations hold the passage's text")


class DocumentIn(BaseModel):
    """A document to ingest; the same doc_id again is a new revision."""

    model_config = STRICT

    doc_id: DocId
    text: Unicode
    title: Title = ""
    metadata: Annotated[dict[str, JsonValue], AfterValidator(_encodable)] = Field(
        default_factory=dict
    )


class PrecomputeRequest(BaseModel):
    """POST /admin/precompute."""

    model_config = STRICT

    documents: list[DocumentIn] = Field(min_length=1)


class Citation(BaseModel):
    """A passage the answer was given; `index` is its place in the prompt, from 1."""

    index: int
    doc_id: str
    chunk_id: int
    title: str
    char_start: int
    char_end: int
    score: float
    text: str | None = None


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CacheSegment(BaseModel):
    """What happened to one segment's KV; tier is memory, ssd, redis or cold (recomputed); `bytes`
    were read of the `stored_bytes` that its whole KV has."""

    tier: str
    bytes: int
    stored_bytes: int
    tokens: int
    rows_recomputed: int
    load_s: float
    problems: list[str]


class CacheDocument(CacheSegment):
    doc_id: str
    chunk_id: int


class CacheReport(BaseModel):
    system: CacheSegment
    documents: list[CacheDocument]
    rows_per_layer: list[int]
    kept_per_layer: list[float]
    coverage: float
    flops: float
    full_prefill_flops: float
    kept_ratio: float
    recomputed_ratio: float
    recomputed_tokens: int


class Timing(BaseModel):
    """Seconds; tpot_s is None for answers of fewer than two tokens."""

    ttft_s: float
    tpot_s: float | None
    total_s: float


class GenerateResponse(BaseModel):
    id: str
    model: str
    text: str
    finish_reason: str
    citations: list[Citation]
    usage: Usage
    cache: CacheReport
    stages: dict[str, float]
    timing: Timing
    fusion: dict[str, Any]
    eviction: dict[str, Any] | None
    seed: int | None
    warnings: list[str]


class JobProgress(BaseModel):
    """`done` documents are stored with their KV, `failed` ones are not."""

    done: int
    failed: int
    total: int


class JobErrorOut(BaseModel):
    doc_id: str
    message: str


class JobOut(BaseModel):
    job_id: str
    state: str
    progress: JobProgress
    chunks: int
    changes: dict[str, int]
    errors: list[JobErrorOut]
    created: float
    updated: float


class DocumentOut(BaseModel):
    doc_id: str
    title: str
    metadata: dict[str, Any]
    revision: str
    created: float
    updated: float
    num_chars: int
    num_chunks: int
    num_tokens: int
    text: str | None = None


class DocumentList(BaseModel):
    documents: list[DocumentOut]
    next_cursor: str | None


class DeletedOut(BaseModel):
    """`kv` counts deleted copies per tier; None: the worker is away and will delete them."""

    doc_id: str
    chunks: int
    kv: dict[str, int] | None
