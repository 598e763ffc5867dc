"""What the service answers, as dataclasses.

A field that is not known here is ignored, so that an older client reads a newer service's answers;
`raw` holds all that was sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Result:
    """What all whole answers have: `raw` is the JSON as it was sent."""

    raw: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class FoundPassage:
    """A passage; `index` is its place in the prompt or the ranking, from 1. `score` is what it was
    ranked by: cosine, BM25, reciprocal ranks, or the reranker's score."""

    index: int
    doc_id: str
    chunk_id: int
    title: str
    char_start: int
    char_end: int
    score: float
    dense_rank: int | None = None
    dense_score: float | None = None
    sparse_rank: int | None = None
    sparse_score: float | None = None
    rerank_score: float | None = None
    text: str | None = None
    page: str | None = None
    heading: str | None = None


@dataclass(frozen=True, kw_only=True)
class Citation(FoundPassage):
    """A passage that an answer was given. Fields from `used` on are known once there is an answer;
    quotes are spans of the document."""

    url: str | None = None
    used: bool | None = None
    support: float | None = None
    quote_start: int | None = None
    quote_end: int | None = None


@dataclass(frozen=True, kw_only=True)
class SearchResult(FoundPassage):
    """A passage of a search, with its document's metadata."""

    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SearchResults(Result):
    """Passages, best first; `ranked_by`: cosine, bm25, reciprocal_ranks or reranker."""

    collection: str
    retrieval: str
    ranked_by: str
    results: list[SearchResult]
    stages: dict[str, float]
    warnings: list[str]


@dataclass(frozen=True, kw_only=True)
class PromptTokensDetails:
    cached_tokens: int


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens of the serving model."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


@dataclass(frozen=True, kw_only=True)
class CacheSegment:
    """What happened to one segment's KV (docs/api.md)."""

    tier: str
    bytes: int
    stored_bytes: int
    tokens: int
    rows_recomputed: int
    load_s: float
    problems: list[str]
    plan: str
    why: str
    computed: str = ""
    behind: int = 0
    reused: int = 0


@dataclass(frozen=True, kw_only=True)
class CacheDocument(CacheSegment):
    doc_id: str
    chunk_id: int


@dataclass(frozen=True, kw_only=True)
class CacheReport:
    """What happened to the KV of the whole prompt (docs/api.md)."""

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
    ratio: float | None = None
    gate: dict[str, Any] | None = None
    tokens: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds; `tpot_s` is None for answers of fewer than two tokens."""

    ttft_s: float
    tpot_s: float | None
    total_s: float


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """A sentence of an answer, `text[start:end]`, and the indexes of citations that support it."""

    start: int
    end: int
    citations: list[int]
    score: float
    by: str


@dataclass(frozen=True, kw_only=True)
class Answer(Result):
    """A whole answer."""

    id: str
    model: str
    adapter: str | None = None
    text: str
    finish_reason: str
    citations: list[Citation]
    found: bool = True
    retrieval: dict[str, Any] | None = None
    attributions: list[Attribution] | None = None
    usage: Usage
    cache: CacheReport
    stages: dict[str, float]
    timing: Timing
    fusion: dict[str, Any]
    eviction: dict[str, Any] | None
    seed: int | None
    logprobs: list[dict[str, Any]] | None = None
    warnings: list[str]


@dataclass(frozen=True, kw_only=True)
class Explanation(Result):
    """What an answer would take; seconds are estimates."""

    id: str
    model: str
    adapter: str | None = None
    citations: list[Citation]
    prompt_tokens: int
    max_tokens: int
    documents: list[dict[str, Any]]
    recomputed_tokens: int
    flops: float
    full_prefill_flops: float
    expected_ttft_s: float
    full_prefill_ttft_s: float
    measured: bool
    warnings: list[str]


@dataclass(frozen=True, kw_only=True)
class RerankedText:
    text: str


@dataclass(frozen=True, kw_only=True)
class RerankResult:
    """`index` is the document's place in the request, from 0."""

    index: int
    relevance_score: float
    document: RerankedText | None = None


@dataclass(frozen=True, kw_only=True)
class Reranking(Result):
    """Documents, best first."""

    id: str
    model: str
    results: list[RerankResult]


@dataclass(frozen=True, kw_only=True)
class Embeddings(Result):
    """One vector per text, in their order, each of length 1. `tokens`: of the texts."""

    model: str
    vectors: list[list[float]]
    tokens: int


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """`done` documents are stored with their KV, `failed` and `cancelled` ones are not."""

    done: int
    failed: int
    cancelled: int
    total: int


@dataclass(frozen=True, kw_only=True)
class JobFault:
    doc_id: str
    message: str


@dataclass(frozen=True, kw_only=True)
class DocumentWarning:
    """Something of a file that is not in the document's text, or that may be wrong there.

    Attributes:
        code: What kind of thing, for programs.
        message: A sentence for people.
        places: Pages, slides or sheets where it is; at most 200.
        count: How many there are.
    """

    code: str
    message: str
    places: list[str]
    count: int


@dataclass(frozen=True, kw_only=True)
class WarnedDocument:
    """A document that is stored, but not all of its file."""

    doc_id: str
    warnings: list[DocumentWarning]


@dataclass(frozen=True, kw_only=True)
class Job(Result):
    """An ingest job; `state`: queued, running, succeeded, failed, cancelled or dead."""

    job_id: str
    state: str
    progress: JobProgress
    chunks: int
    changes: dict[str, int]
    errors: list[JobFault]
    warnings: list[WarnedDocument] = dataclasses.field(default_factory=list)
    warned: int = 0
    waiting: str | None = None
    eta_s: float | None = None
    created: float
    updated: float

    @property
    def ended(self) -> bool:
        return self.state not in ("queued", "running")


@dataclass(frozen=True, kw_only=True)
class Document(Result):
    """A stored document; `text` is None in listings."""

    doc_id: str
    title: str
    metadata: dict[str, Any]
    revision: str
    created: float
    updated: float
    num_chars: int
    num_chunks: int
    num_tokens: int
    pinned: bool
    readers: list[str] = field(default_factory=list)
    text: str | None = None
    warnings: list[DocumentWarning] | None = None


@dataclass(frozen=True, kw_only=True)
class StoredChunk:
    """A chunk: characters `start` to `end` of the text; `tokens` as it is prefilled."""

    start: int
    end: int
    tokens: int
    page: str | None = None
    heading: str | None = None


@dataclass(frozen=True, kw_only=True)
class DocumentText(Result):
    """What is stored of a document."""

    doc_id: str
    title: str
    text: str
    chunks: list[StoredChunk]
    warnings: list[DocumentWarning]


@dataclass(frozen=True, kw_only=True)
class Collection(Result):
    """A collection that has documents; `tokens`: of their chunks."""

    collection: str
    documents: int
    chunks: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Receipt(Result):
    """What a deletion removed; `state` is owed until every tier's KV is gone, then completed."""

    receipt_id: str
    state: str
    collection: str
    doc_ids: list[str]
    documents: int
    chunks: int
    kv: dict[str, int]
    owed_chunks: int
    unreached: list[str]
    created: float
    completed: float | None


@dataclass(frozen=True, kw_only=True)
class MethodInfo:
    """A method, what it does, and its parameters as JSON schemas."""

    name: str
    doc: str
    parameters: dict[str, Any]
    unavailable: str = ""


@dataclass(frozen=True, kw_only=True)
class Methods(Result):
    fusion: list[MethodInfo]
    eviction: list[MethodInfo]
    defaults: dict[str, Any]
