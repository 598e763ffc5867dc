"""What clients of /admin send and get, as pydantic models. Knows no use case."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, JsonValue

from service.gateway.schemas.fields import STRICT, DocId, Title, Unicode, encodable


class DocumentIn(BaseModel):
    """A document to ingest; the same doc_id again is a new revision."""

    model_config = STRICT

    doc_id: DocId
    text: Unicode
    title: Title = ""
    metadata: Annotated[dict[str, JsonValue], AfterValidator(encodable)] = Field(
        default_factory=dict
    )


class PrecomputeRequest(BaseModel):
    """POST /admin/precompute."""

    model_config = STRICT

    documents: list[DocumentIn] = Field(min_length=1)


class JobProgress(BaseModel):
    """`done` documents are stored with their KV, `failed` ones are not."""

    done: int
    failed: int
    total: int


class JobErrorOut(BaseModel):
    doc_id: str
    message: str


class JobOut(BaseModel):
    job_id: str
    state: str
    progress: JobProgress
    chunks: int
    changes: dict[str, int]
    errors: list[JobErrorOut]
    created: float
    updated: float


class DocumentOut(BaseModel):
    doc_id: str
    title: str
    metadata: dict[str, Any]
    revision: str
    created: float
    updated: float
    num_chars: int
    num_chunks: int
    num_tokens: int
    text: str | None = None


class DocumentList(BaseModel):
    documents: list[DocumentOut]
    next_cursor: str | None


class DeletedOut(BaseModel):
    """`kv` counts deleted copies per tier; None: the worker is away and will delete them."""

    doc_id: str
    chunks: int
    kv: dict[str, int] | None
