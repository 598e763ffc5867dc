"""The response to a request with `explain: true`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from service.gateway.schemas.citations import Citation, RetrievalNote
from service.messages.requests import ColdMode


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
    flops: float
    full_prefill_flops: float
    expected_ttft_s: float = Field(description="with retrieval as it just was, without a queue")
    full_prefill_ttft_s: float
    measured: bool
    stages: dict[str, float]
    fusion: dict[str, Any]
    eviction: dict[str, Any] | None
    warnings: list[str]
