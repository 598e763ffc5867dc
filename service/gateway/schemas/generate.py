"""Requests and responses of /v1/rag/generate.

Requests are strict: an unknown field, or a number sent as a string, is an error that names it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.json_schema import SkipJsonSchema

from service.gateway.schemas.citations import (
    Attribution,
    Citation,
    CiteStyle,
    Condense,
    RetrievalNote,
)
from service.gateway.schemas.fields import STRICT, NewDocId, StrictModel, Title, Unicode
from service.gateway.schemas.logprobs import TokenLogprob
from service.gateway.schemas.sampling import SamplingFields
from service.gateway.schemas.tokens import TokenReport
from service.gateway.tool_calls.tools import ToolSet
from service.messages.reports import GateStateName
from service.messages.requests import ColdMode
from service.prompt import Turn

MAX_MESSAGES = 512
MAX_INLINE_DOCUMENTS = 64
MAX_NAMED_DOCUMENTS = 10_000


class MethodChoice(BaseModel):
    """A method by name; every other field is a parameter of it (see GET /v1/methods)."""

    model_config = ConfigDict(extra="allow", strict=True)

    method: str = Field(examples=["a3", "pie", "vanilla"])

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Message(StrictModel):
    """One turn of a conversation; the last one is the question."""

    role: Literal["system", "user", "assistant"]
    content: Unicode


Messages = Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]


class InlineDocument(StrictModel):
    """A document that comes with the request: cited, cached, but not kept in the catalog."""

    text: Unicode
    title: Title = ""
    doc_id: NewDocId | None = Field(None, description="what citations call it; else inline-1, …")


Profile = Literal["fast", "balanced", "exact"]


class SearchChoices(StrictModel):
    """Which passages are searched for."""

    collection: Unicode | None = Field(None, description="search here; none: `default`")
    top_k: int | None = Field(None, ge=0, description="passages wanted; 0: none")
    documents: (
        Annotated[list[Unicode], Field(fail_fast=True, max_length=MAX_NAMED_DOCUMENTS)] | None
    ) = Field(None, description="only passages of these documents")
    filter: dict[str, JsonValue] | None = Field(
        None, description="only documents whose metadata passes, e.g. {'year': {'gte': 2020}}"
    )
    retrieval: Literal["dense", "sparse", "hybrid"] | None = Field(
        None, description="by meaning, by words, or both; none: the service's default"
    )
    rerank: bool = Field(
        False, description="ask the service's reranker, which has a deadline of its own"
    )
    min_score: float | None = Field(
        None,
        allow_inf_nan=False,
        description="leave out passages whose `score` is lower: with rerank the reranker's score; "
        "else the cosine (dense), BM25 (sparse) or the sum of reciprocal ranks (hybrid)",
    )


class Choices(SearchChoices):
    """What to answer from, and how: the fields that OpenAI's routes take as `kvstitch`."""

    inline_documents: (
        Annotated[
            list[InlineDocument],
            Field(fail_fast=True, min_length=1, max_length=MAX_INLINE_DOCUMENTS),
        ]
        | None
    ) = Field(None, description="answer from these texts, all of them, instead of searching")
    fusion: MethodChoice | None = Field(
        None,
        description="none: the service's default (GET /v1/methods); `auto` with `quality`: the "
        "cheapest that `kvstitch tune` has measured to agree that often with full prefill",
    )
    eviction: MethodChoice | None = None
    profile: Profile | None = Field(
        None,
        description="instead of fusion and eviction: `fast` recomputes nothing, `balanced` is the "
        "service's default, `exact` is full prefill; none of them evicts",
    )
    cold: ColdMode | None = Field(
        None,
        description="how chunks that are not stored are computed: `in_context` of the prompt, or "
        "`as_stored`, by themselves, so that later answers are the same; none: the service's "
        "default",
    )
    prefix_cache: bool = Field(
        True,
        description="false: compute the whole prompt, and keep nothing of it for later ones",
    )
    include_text: bool = Field(False, description="citations hold the passage's text")
    condense: Condense | None = Field(
        None,
        description="what is searched for a question that follows others: `off`, the question as "
        "it is; `join`, together with the earlier ones; `model`, what the model makes of it; none: "
        "the service's default",
    )
    attribute: bool = Field(
        True, description="say which passages support which sentences of the answer"
    )
    cite: CiteStyle = Field(
        "none",
        description="`marks` puts [1] behind the sentences of a whole answer that passage 1 "
        "supports; `inline` asks the model to write such marks",
    )


class GenerateRequest(Choices, SamplingFields):
    """POST /v1/rag/generate. Fields left out take the model's defaults."""

    model_config = ConfigDict(
        **STRICT,
        json_schema_extra={"oneOf": [{"required": ["question"]}, {"required": ["messages"]}]},
    )

    question: Unicode | SkipJsonSchema[None] = Field(
        None, description="this, or messages", json_schema_extra={"pattern": r"\S"}
    )
    messages: (
        Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
        | SkipJsonSchema[None]
    ) = None
    adapter: Unicode | None = Field(
        None,
        description="the LoRA adapter that answers, one of GET /v1/models with a `parent`; none: "
        "that of the API key, else the model itself",
    )
    stream: bool = False
    include_tokens: bool = Field(
        False, description="the answer's cache report says what became of every prompt token"
    )
    explain: bool = Field(
        False, description="a dry run: say what would be loaded and computed, generate nothing"
    )

    @property
    def turns(self) -> list[Turn]:
        """The conversation as it was sent."""
        if self.messages is None:
            return [Turn("user", self.question or "")]
        return [Turn(message.role, message.content) for message in self.messages]

    @property
    def tools(self) -> ToolSet | None:
        """Functions that the answer may call; only OpenAI's routes take them."""
        return None


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CacheSegment(BaseModel):
    """What happened to one segment's KV; tier is memory, ssd, redis, s3 or cold (computed); `bytes`
    were read of the `stored_bytes` that its whole KV has. rows_recomputed: its tokens that were
    computed with the prompt. plan: what the planner chose, "load" or "recompute", empty where there
    was no choice; why it was recomputed. computed: how a cold one was, "in_context" or
    "as_stored"; else empty. behind: other chunks of the collection that its stored KV was computed
    behind, in the prefix modes that have them. reused: tokens whose KV an earlier prompt left; a
    segment that is reused as a whole has the tier `pool` or `prompts`."""

    tier: str
    bytes: int
    stored_bytes: int
    tokens: int
    rows_recomputed: int
    load_s: float
    problems: list[str]
    plan: str
    why: str
    computed: ColdMode | Literal[""] = ""
    behind: int = 0
    reused: int = 0


class CacheDocument(CacheSegment):
    doc_id: str
    chunk_id: int


class GateNote(BaseModel):
    """What ran instead of the fusion method that was asked for, and what had been seen of that."""

    state: GateStateName
    used: dict[str, Any]
    why: str


class CacheReport(BaseModel):
    """ratio: the fusion method's, as it was used; None if it has none. gate: what the correctness
    gate changed; None: nothing. tokens: only where the request says `include_tokens`.
    reused_tokens: of the prompt, those whose KV an earlier prompt left. reused_from: where: `pool`,
    the KV pool, or `prompts`, on disk; empty: nothing was."""

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
    reused_tokens: int = 0
    reused_from: str = ""
    ratio: float | None
    gate: GateNote | None
    tokens: TokenReport | None = None


class Timing(BaseModel):
    """Seconds; tpot_s is None for answers of fewer than two tokens."""

    ttft_s: float
    tpot_s: float | None
    total_s: float


class GenerateResponse(BaseModel):
    id: str
    model: str
    adapter: str | None = Field(None, description="the LoRA adapter that answered; none: none did")
    text: str
    finish_reason: str
    citations: list[Citation]
    found: bool = Field(description="whether the prompt held any passage")
    retrieval: RetrievalNote | None = Field(None, description="none: nothing was searched for")
    attributions: list[Attribution] | None = Field(
        default=None, description="where they are asked for"
    )
    usage: Usage
    cache: CacheReport
    stages: dict[str, float]
    timing: Timing
    fusion: dict[str, Any]
    eviction: dict[str, Any] | None
    seed: int | None
    logprobs: list[TokenLogprob] | None = Field(None, description="where the request asks for them")
    warnings: list[str]
