"""Requests and responses of /v1/rerank, in the form of Cohere and Jina.

Like OpenAI's routes it ignores unknown fields, because these clients send several.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from service.gateway.schemas.fields import Unicode
from service.gateway.schemas.openai.common import LENIENT


class RerankText(BaseModel):
    model_config = LENIENT

    text: Unicode


class RerankRequest(BaseModel):
    """POST /v1/rerank: texts in the order in which they answer `query`."""

    model_config = LENIENT

    query: Unicode = Field(json_schema_extra={"pattern": r"\S"})
    documents: Annotated[list[Unicode | RerankText], Field(fail_fast=True)] = Field(
        min_length=1, description="texts, or objects with a text"
    )
    model: Unicode | None = Field(None, description="of the reranker, if the service names one")
    top_n: int | None = Field(None, ge=1, description="results wanted; none: all")
    return_documents: bool = Field(False, description="results hold the document's text")

    @property
    def texts(self) -> list[str]:
        return [one if isinstance(one, str) else one.text for one in self.documents]


class RerankedText(BaseModel):
    text: str


class RerankResult(BaseModel):
    """`index` is the document's place in the request, from 0."""

    index: int
    relevance_score: float
    document: RerankedText | None = None


class RerankUsage(BaseModel):
    """Tokens of query and documents, by the serving model's tokenizer: the reranker's own count is
    not known."""

    total_tokens: int


class RerankResponse(BaseModel):
    id: str
    model: str
    results: list[RerankResult]
    usage: RerankUsage
