"""Answers of /v1/rag/generate: passages, attributions, what became of KV and tokens, dry runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from service.messages.reports import GateStateName
from service.messages.requests import ColdMode, Method

Condense = Literal["off", "join", "model"]
CiteStyle = Literal["none", "marks", "inline"]
Source = Literal["memory", "ssd", "redis", "s3", "recomputed", "cold", "question"]
MAX_LOGPROBS = 20  # as OpenAI has it, on the chat route and here


def _as_sent(method: Any) -> Any:
    return {"method": method.name, **method.parameters} if isinstance(method, Method) else method


MethodUsed = Annotated[dict[str, Any], BeforeValidator(_as_sent)]
"""A method as clients write it: {"method": name, parameter: value, …}."""


class FoundPassage(BaseModel):
    """A passage of a document; `index` is its place, from 1."""

    index: int
    doc_id: str
    chunk_id: int
    title: str
    char_start: int
    char_end: int
    page: str | None = Field(None, description="page, slide or sheet on which it begins")
    heading: str | None = Field(None, description="the last one at or before its beginning")
    score: float = Field(
        description="what it was ranked by: cosine, BM25 or reciprocal ranks; where two searches "
        "were joined, reciprocal ranks in both"
    )
    dense_rank: int | None = None
    dense_score: float | None = None
    sparse_rank: int | None = None
    sparse_score: float | None = None
    rerank_score: float | None = None
    text: str | None = None


class Citation(FoundPassage):
    """A passage the answer was given; `index` is its place in the prompt, from 1. Fields from
    `used` on are known once there is an answer."""

    url: str | None = Field(None, description="of the document's metadata, where they have one")
    used: bool | None = Field(default=None, description="whether a sentence of the answer cites it")
    support: float | None = Field(
        default=None, description="of the sentence that it supports best, 0 to 1"
    )
    quote_start: int | None = Field(
        default=None,
        description="its sentence that supports the answer best, as a span of the document",
    )
    quote_end: int | None = None


class Attribution(BaseModel):
    """A sentence of the answer, `text[start:end]`, and the indexes of the passages that support it,
    the best first; none: no passage does. score: the share of its words, by weight, that the best
    passage holds. by: words, or marks that the model wrote."""

    start: int
    end: int
    citations: list[int]
    score: float
    by: Literal["words", "marks"]


class RetrievalNote(BaseModel):
    """What was searched for. joined: what was searched beside it, and the two rankings fused;
    None: nothing. condense: what was done with the conversation."""

    query: str
    joined: str | None
    condense: Condense


class LikelyToken(BaseModel):
    """A token, and the natural logarithm of its probability before temperature and top_p. bytes:
    None of a token without text; a token may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None
    token_id: int


class TokenLogprob(LikelyToken):
    """A token of the answer, and the most likely tokens in its place."""

    text_offset: int = Field(description="where it begins in the answer's text, in characters")
    top_logprobs: list[LikelyToken]


class TokenRunOut(BaseModel):
    """Neighbouring tokens that fared alike."""

    tokens: int
    source: Source = Field(description="where their KV came from; cold: computed, none was stored")
    computed_layers: int = Field(description="layers at which it was computed with this prompt")
    entries: int = Field(
        description="of layers · kv_heads, those holding it after the first token; 0: evicted"
    )


class SegmentTokens(BaseModel):
    """One segment's tokens. Token i is `text` from `starts[i]` to the next start, or to the end;
    special tokens and parts of a character have no text. scores: by which the fusion method ranked
    them, None where it ranks nothing."""

    text: str
    starts: list[int]
    runs: list[TokenRunOut]
    scores: list[float] | None


class TokenReport(BaseModel):
    """What became of every token of the prompt; `documents` in the order of the prompt."""

    layers: int
    kv_heads: int
    system: SegmentTokens
    documents: list[SegmentTokens]
    question: SegmentTokens


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
    used: MethodUsed
    why: str


class CacheReport(BaseModel):
    """ratio: the fusion method's, as it was used; None if it has none. gate: what the correctness
    gate changed; None: nothing. tokens: only where the request says `include_tokens`.
    reused_tokens: of the prompt, those whose KV an earlier prompt left. reused_from: where: `pool`,
    the KV pool; empty: nothing was. history_tokens: of earlier turns, behind other documents than
    before, those whose KV the turn before left."""

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
    history_tokens: int = 0
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
    fusion: MethodUsed
    eviction: MethodUsed | None
    seed: int | None
    logprobs: list[TokenLogprob] | None = Field(None, description="where the request asks for them")
    warnings: list[str]


class SegmentForecastOut(BaseModel):
    """What would happen to one segment: `tier` holds its KV now, or is cold; `load_bytes` of the
    `stored_bytes` that its KV has would be read. computed: how one that is not loaded would be.
    behind: other chunks of the collection that its stored KV is computed behind. reused: its tokens
    whose KV an earlier prompt left; all of them where `action` is reuse."""

    tier: str
    tokens: int
    stored_bytes: int
    load_bytes: int
    action: Literal["load", "recompute", "reuse"]
    load_s: float
    computed: ColdMode | Literal[""] = ""
    behind: int = 0
    reused: int = 0


class DocumentForecast(SegmentForecastOut):
    doc_id: str
    chunk_id: int


class Explanation(BaseModel):
    """A dry run. Seconds are estimates, from what loads and prefills took here if `measured`."""

    id: str
    model: str
    adapter: str | None = None
    explain: Literal[True] = True
    citations: list[Citation]
    found: bool = Field(description="whether the prompt holds any passage")
    retrieval: RetrievalNote | None = None
    prompt_tokens: int
    max_tokens: int
    system: SegmentForecastOut
    documents: list[DocumentForecast]
    recomputed_tokens: int
    reused_tokens: int = 0
    reused_from: str = ""
    history_tokens: int = 0
    flops: float
    full_prefill_flops: float
    expected_ttft_s: float = Field(description="with retrieval as it just was, without a queue")
    full_prefill_ttft_s: float
    measured: bool
    stages: dict[str, float]
    fusion: MethodUsed
    eviction: MethodUsed | None
    warnings: list[str]
