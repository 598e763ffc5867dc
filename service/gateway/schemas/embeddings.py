"""Requests and responses of /v1/embeddings, in OpenAI's form."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from service.gateway.schemas.fields import Unicode
from service.gateway.schemas.openai.common import LENIENT


class EmbeddingsRequest(BaseModel):
    """POST /v1/embeddings: vectors of the service's embedder, each of length 1."""

    model_config = LENIENT

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
