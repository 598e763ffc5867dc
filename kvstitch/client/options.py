"""What calls take besides the question, as keyword arguments. docs/api.md says what each means."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

Retrieval = Literal["dense", "sparse", "hybrid"]


class SearchOptions(TypedDict, total=False):
    """Which passages are searched for. None is the same as leaving it out."""

    collection: str | None
    top_k: int | None
    documents: list[str] | None
    filter: dict[str, Any] | None
    retrieval: Retrieval | None
    rerank: bool
    min_score: float | None
    include_text: bool
    deadline_s: float | None


class GenerateOptions(SearchOptions, total=False):
    """What to answer from, and how."""

    messages: list[dict[str, str]] | None
    inline_documents: list[dict[str, Any]] | None
    fusion: dict[str, Any] | None
    eviction: dict[str, Any] | None
    profile: Literal["fast", "balanced", "exact"] | None
    adapter: str | None
    cold: Literal["in_context", "as_stored"] | None
    prefix_cache: bool
    condense: Literal["off", "join", "model"] | None
    attribute: bool
    cite: Literal["none", "marks", "inline"]
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int | None
    stop: str | list[str] | None
    logprobs: int | None
    include_tokens: bool


class NewDocument(TypedDict, total=False):
    """A document to store; `doc_id` and `text` are needed."""

    doc_id: str
    text: str
    title: str
    metadata: dict[str, Any]
    collection: str | None
