"""Dify's External Knowledge API: what it sends to /retrieval, and what it reads.

https://docs.dify.ai/en/use-dify/knowledge/external-knowledge-api, as it was in June 2026. Unknown
fields are ignored, because Dify's releases add some.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from service.gateway.schemas.fields import LENIENT, Unicode

Operator = Literal[
    "contains", "not contains", "start with", "end with", "is", "is not", "in", "not in",
    "empty", "not empty", "=", "≠", ">", "<", "≥", "≤", "before", "after",
]  # fmt: skip
Value = Unicode | int | float | list[Unicode]


class Condition(BaseModel):
    """`name` may be several fields (Dify's earlier documentation): one of them passes."""

    model_config = LENIENT

    name: Unicode | Annotated[list[Unicode], Field(min_length=1)]
    comparison_operator: Operator
    value: Value | None = None


class MetadataCondition(BaseModel):
    model_config = LENIENT

    logical_operator: Literal["and", "or"] | None = None
    conditions: Annotated[list[Condition], Field(fail_fast=True)] | None = None


class RetrievalSetting(BaseModel):
    model_config = LENIENT

    top_k: int = Field(ge=1)
    score_threshold: float = Field(0.0, ge=0, le=1, description="0: none")


class RetrievalRequest(BaseModel):
    """POST /retrieval; `knowledge_id` is the name of a collection."""

    model_config = LENIENT

    knowledge_id: Annotated[Unicode, Field(min_length=1)]
    query: Unicode
    retrieval_setting: RetrievalSetting
    metadata_condition: MetadataCondition | None = None


class Record(BaseModel):
    content: str
    score: float = Field(description="0 to 1")
    title: str
    metadata: dict[str, Any]


class Records(BaseModel):
    records: list[Record]


class Refusal(BaseModel):
    error_code: int = Field(description="Dify's, or the status")
    error_msg: str
