"""What answers say about their passages: citations, what supports what, what was searched for."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

Condense = Literal["off", "join", "model"]
CiteStyle = Literal["none", "marks", "inline"]


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
