"""Requests of /v1/search, /v1/rerank (as Cohere and Jina have it), /v1/embeddings.

Rerank and embeddings ignore unknown fields, as OpenAI's routes do: their clients send several.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from kvstitch.service.gateway.schemas.fields import LenientModel, Unicode
from kvstitch.service.gateway.schemas.generate import SearchChoices


class SearchRequest(SearchChoices):
    """POST /v1/search: the passages that an answer to `query` would be given."""

    query: Unicode = Field(description="what is searched for", json_schema_extra={"pattern": r"\S"})
    top_k: int | None = Field(None, ge=1, description="passages wanted; none: the model's default")
    include_text: bool = Field(True, description="results hold the passage's text")


class RerankText(LenientModel):
    text: Unicode


class RerankRequest(LenientModel):
    """POST /v1/rerank: texts in the order in which they answer `query`."""

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


class EmbeddingsRequest(LenientModel):
    """POST /v1/embeddings: vectors of the service's embedder, each of length 1."""

    input: (
        Unicode
        | Annotated[
            list[Unicode | int | Annotated[list[int], Field(fail_fast=True)]],
            Field(fail_fast=True, min_length=1),
        ]
    ) = Field(description="a text, or a list of texts; token ids are refused")
    model: Unicode | None = Field(None, description="the embedder's name; none: the same")
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64: of float32, little-endian"
    )
    dimensions: int | None = Field(
        None, ge=1, description="of a vector; refused unless it is the embedder's"
    )
    user: Unicode | None = Field(None, description="accepted, not used")


class Embedding(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(BaseModel):
    """By the embedder's tokenizer; 0 where an endpoint does not say."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage
