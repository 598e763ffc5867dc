"""How documents are cut and found. None: what the model folder says, or the default."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, field_validator

from service.prompt import PREFIX_MODES
from service.settings.addresses import HttpUrl


class RetrievalSettings(BaseModel):
    """How documents are cut and found. None: what the model folder says, or the default."""

    embedder: str = Field(
        "",
        description="folder of a sentence-embedding model, or its name at embedder_url; "
        "empty: all-MiniLM-L6-v2",
    )
    embedder_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="of a local embedder; auto: bfloat16 where the CPU multiplies it"
    )
    embedder_url: HttpUrl = Field("", description="base of an OpenAI-like API, http://host:port/v1")
    embedder_key: str = Field("", description="bearer token for embedder_url")
    embedder_revision: str = Field("", description="change it with the model behind embedder_url")
    reranker_url: HttpUrl = Field("", description="a rerank endpoint, http://host:port/rerank")
    reranker_style: Literal["tei", "cohere"] = Field("tei", description="cohere: Jina, vLLM too")
    reranker_model: str = Field("", description="its name at reranker_url, where one is asked for")
    reranker_key: str = Field("", description="bearer token for reranker_url")
    rerank_deadline_s: float = Field(0.3, gt=0, description="then the order of the search stays")
    retrieval: Literal["dense", "sparse", "hybrid"] = Field(
        "hybrid", description="how passages are searched where a request does not say"
    )
    exact_vectors: int = Field(
        200_000, ge=1000, description="chunks of a collection up to which vector search is exact; "
        "above, it reads as many lists as find 99 % of the ten best"
    )  # fmt: skip
    condense: Literal["off", "join", "model"] = Field(
        "join",
        description="what is searched for a question that follows others, where a request does "
        "not say: the question, joined with earlier ones, or rewritten by the model",
    )
    chunk_tokens: int | None = Field(None, ge=16, le=32768)
    top_k: int | None = Field(None, ge=0, le=1024)
    prefix_mode: str | None = None
    companions: int = Field(
        3, ge=1, le=16, description="chunks that others are computed behind: primer, neighbours"
    )

    @field_validator("prefix_mode")
    @classmethod
    def _known_prefix_mode(cls, value: str | None) -> str | None:
        if value is not None and value not in PREFIX_MODES:
            raise ValueError(f"must be one of {', '.join(PREFIX_MODES)}")
        return value
