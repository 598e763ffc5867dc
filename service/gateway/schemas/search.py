"""Requests and responses of /v1/search."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from service.gateway.schemas.citations import FoundPassage
from service.gateway.schemas.fields import Unicode
from service.gateway.schemas.generate import SearchChoices

RankedBy = Literal["cosine", "bm25", "reciprocal_ranks", "reranker"]


class SearchRequest(SearchChoices):
    """POST /v1/search: the passages that an answer to `query` would be given."""

    query: Unicode = Field(description="what is searched for", json_schema_extra={"pattern": r"\S"})
    top_k: int | None = Field(None, ge=1, description="passages wanted; none: the model's default")
    include_text: bool = Field(True, description="results hold the passage's text")


class SearchResult(FoundPassage):
    """A passage; `index` is its place in the ranking, from 1."""

    metadata: dict[str, Any] = Field(default_factory=dict, description="the document's")


class SearchResponse(BaseModel):
    """Passages, best first. `ranked_by` says what their `score` is, and what `min_score` was
    compared with: the cosine of query and passage from -1 to 1 (dense), BM25 above 0 (sparse), the
    sum of 1/(60 + rank) over the two rankings, at most 2/61 (hybrid), or the reranker's score."""

    collection: str
    retrieval: Literal["dense", "sparse", "hybrid"]
    ranked_by: RankedBy
    results: list[SearchResult]
    stages: dict[str, float] = Field(description="seconds")
    warnings: list[str]
