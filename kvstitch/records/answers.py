"""Answers, searches and rankings. Docstrings and descriptions are part of /openapi.json.

Of a class without a docstring the API says nothing more; what programs should know of it stands in
a comment.
"""

from dataclasses import field
from typing import Any, Literal

from kvstitch.records.base import Fields, Result, record, told

Retrieval = Literal["dense", "sparse", "hybrid"]
RankedBy = Literal["cosine", "bm25", "meaning_and_words", "reranker"]
Condense = Literal["off", "join", "model"]
Unanswerable = Literal["say", "model", "answer"]
RELEVANCE = (
    "how far what was found is about the question, 0 to 1; below 0.5 it is not; none: not judged"
)
Source = Literal["memory", "ssd", "redis", "s3", "recomputed", "cold", "question"]
MethodUsed = dict[str, Any]
"""A method as clients write it: {"method": name, parameter: value, …}."""


@record
class FoundPassage:
    """A passage of a document; `index` is its place, from 1."""

    index: int
    doc_id: str
    chunk_id: int
    title: str
    char_start: int
    char_end: int
    page: str | None = told("page, slide or sheet on which it begins", default=None)
    heading: str | None = told("the last one at or before its beginning", default=None)
    score: float = told(
        "what it was ranked by: cosine, BM25 or both; where two searches "
        "were joined, reciprocal ranks in both"
    )
    dense_rank: int | None = None
    dense_score: float | None = None
    sparse_rank: int | None = None
    sparse_score: float | None = None
    rerank_score: float | None = None
    text: str | None = None


@record
class Citation(FoundPassage):
    """A passage the answer was given; `index` is its place in the prompt, from 1. Fields from
    `used` on are known once there is an answer."""

    url: str | None = told("of the document's metadata, where they have one", default=None)
    used: bool | None = told("whether a sentence of the answer cites it", default=None)
    support: float | None = told("of the sentence that it supports best, 0 to 1", default=None)
    quote_start: int | None = told(
        "its sentence that supports the answer best, as a span of the document", default=None
    )
    quote_end: int | None = None


@record
class SearchResult(FoundPassage):
    """A passage; `index` is its place in the ranking, from 1."""

    metadata: dict[str, Any] = told("the document's", default_factory=dict)


@record
class SearchResults(Result):
    """Passages, best first. `ranked_by` says what their `score` is, and what `min_score` was
    compared with: the cosine of query and passage from -1 to 1 (dense), BM25 above 0 (sparse), the
    both by weights, 0 to 1 (hybrid), or the reranker's score."""

    collection: str
    retrieval: Retrieval
    ranked_by: RankedBy
    results: list[SearchResult]
    found: bool = told("whether an answer would be given these passages", absent=True)
    relevance: float | None = told(RELEVANCE, default=None)
    stages: dict[str, float] = told("seconds")
    warnings: list[str]


@record
class RerankedText:
    text: str


@record
class RerankResult:
    """`index` is the document's place in the request, from 0."""

    index: int
    relevance_score: float
    document: RerankedText | None = None


@record
class RerankUsage:
    """Tokens of query and documents, by the serving model's tokenizer: the reranker's own count is
    not known."""

    total_tokens: int


# Documents, best first.
@record
class Reranking(Result):
    id: str
    model: str
    results: list[RerankResult]
    usage: RerankUsage


@record
class Attribution:
    """A sentence of the answer, `text[start:end]`, and the indexes of the passages that support it,
    the best first; none: no passage does. score: the share of its words, by weight, that the best
    passage holds. by: words, or marks that the model wrote."""

    start: int
    end: int
    citations: list[int]
    score: float
    by: Literal["words", "marks"]


@record
class RetrievalNote(Fields):
    """What was searched for. joined: what was searched beside it, and the two rankings fused;
    None: nothing. condense: what was done with the conversation."""

    query: str
    joined: str | None
    condense: Condense


@record
class LikelyToken(Fields):
    """A token, and the natural logarithm of its probability before temperature and top_p. bytes:
    None of a token without text; a token may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None
    token_id: int


@record
class TokenLogprob(LikelyToken):
    """A token of the answer, and the most likely tokens in its place."""

    text_offset: int = told("where it begins in the answer's text, in characters")
    top_logprobs: list[LikelyToken]


@record
class TokenRunOut(Fields):
    """Neighbouring tokens that fared alike."""

    tokens: int
    source: Source = told("where their KV came from; cold: computed, none was stored")
    computed_layers: int = told("layers at which it was computed with this prompt")
    entries: int = told("of layers · kv_heads, those holding it after the first token; 0: evicted")


@record
class SegmentTokens(Fields):
    """One segment's tokens. Token i is `text` from `starts[i]` to the next start, or to the end;
    special tokens and parts of a character have no text. scores: by which the fusion method ranked
    them, None where it ranks nothing."""

    text: str
    starts: list[int]
    runs: list[TokenRunOut]
    scores: list[float] | None


@record
class TokenReport(Fields):
    """What became of every token of the prompt; `documents` in the order of the prompt."""

    layers: int
    kv_heads: int
    system: SegmentTokens
    documents: list[SegmentTokens]
    question: SegmentTokens


@record
class PromptTokensDetails:
    cached_tokens: int


# Tokens of the serving model.
@record
class Usage:
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


@record
class CacheSegment:
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
    computed: Literal["in_context", "as_stored"] | Literal[""] = ""
    behind: int = 0
    reused: int = 0


@record
class OfDocument:
    doc_id: str
    chunk_id: int


@record
class CacheDocument(OfDocument, CacheSegment):
    pass


@record
class GateNote(Fields):
    """What ran instead of the fusion method that was asked for, and what had been seen of that."""

    state: Literal["ok", "ratio_raised", "full_prefill"]
    used: MethodUsed
    why: str


# What computing a prompt takes, or took. recomputed_tokens: computed anew at the last layer, or in
# a cold chunk. flops: as scheduled. reused_tokens: those whose KV is in the prefix cache.
# history_tokens: of earlier turns, taken from the prompt before.
@record
class PromptCost:
    recomputed_tokens: int
    reused_tokens: int = 0
    reused_from: str = ""
    history_tokens: int = 0
    flops: float
    full_prefill_flops: float


# How a prompt was computed. kept_per_layer: KV entries after eviction, mean over KV heads.
# coverage: share of the prompt's tokens that some head of some layer kept. kept_ratio: document KV
# entries held after the first token, of all, mean over layers. recomputed_ratio: document tokens
# computed anew, of all.
@record
class ComputedPrompt(PromptCost):
    rows_per_layer: list[int]
    kept_per_layer: list[float]
    coverage: float
    kept_ratio: float
    recomputed_ratio: float


@record
class CacheReport(ComputedPrompt):
    """ratio: the fusion method's, as it was used; None if it has none. gate: what the correctness
    gate changed; None: nothing. tokens: only where the request says `include_tokens`.
    reused_tokens: of the prompt, those whose KV an earlier prompt left. reused_from: where: `pool`,
    the KV pool; empty: nothing was. history_tokens: of earlier turns, behind other documents than
    before, those whose KV the turn before left."""

    system: CacheSegment
    documents: list[CacheDocument]
    ratio: float | None = told(absent=None)
    exact_from: int | None = told(
        "tokens of the answer before full prefill took over; none: it did not", absent=None
    )
    gate: GateNote | None = told(absent=None)
    tokens: TokenReport | None = None


@record
class Timing:
    """Seconds; tpot_s is None for answers of fewer than two tokens."""

    ttft_s: float
    tpot_s: float | None
    total_s: float


# What every answer tells of itself, and so does the forecast of one. stages: in seconds.
@record
class Origin:
    adapter: str | None = told("the LoRA adapter that answers; none: none does", default=None)
    found: bool = told("whether the prompt holds any passage", absent=True)
    relevance: float | None = told(RELEVANCE, default=None)
    retrieval: RetrievalNote | None = told("none: nothing was searched for", default=None)
    fusion: MethodUsed
    eviction: MethodUsed | None
    stages: dict[str, float]
    warnings: list[str]


@record
class AnswerDetails(Origin):
    finish_reason: str = told("as OpenAI's, or deadline")
    attributions: list[Attribution] | None = told("where they are asked for", default=None)
    cache: CacheReport
    timing: Timing
    seed: int | None


@record
class Named(Result):
    id: str
    model: str


@record
class Worded(Named):  # so that the text and why it ends stand before what they took
    text: str
    finish_reason: str
    citations: list[Citation]


@record
class Answer(AnswerDetails, Worded):
    usage: Usage
    logprobs: list[TokenLogprob] | None = told("where the request asks for them", default=None)


@record
class SegmentForecastOut(Fields):
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
    computed: Literal["in_context", "as_stored"] | Literal[""] = ""
    behind: int = 0
    reused: int = 0


@record
class DocumentForecast(OfDocument, SegmentForecastOut):
    pass


@record
class Explanation(PromptCost, Origin, Named):
    """A dry run. Seconds are estimates, from what loads and prefills took here if `measured`."""

    explain: Literal[True] = True
    citations: list[Citation]
    prompt_tokens: int
    max_tokens: int
    system: SegmentForecastOut
    documents: list[DocumentForecast]
    expected_ttft_s: float = told("with retrieval as it just was, without a queue")
    full_prefill_ttft_s: float
    measured: bool


# One vector per text, in their order, each of length 1. `tokens`: of the texts.
@record
class Embeddings(Result):
    model: str
    vectors: list[list[float]]
    tokens: int


# A method, what it does, and its parameters as JSON schemas.
@record
class MethodInfo:
    name: str
    doc: str
    parameters: dict[str, Any]
    unavailable: str = ""


@record
class Methods(Result):
    fusion: list[MethodInfo]
    eviction: list[MethodInfo]
    defaults: dict[str, Any]
    names: dict[str, MethodUsed] = field(default_factory=dict)  # what exact, balanced, fastest are
