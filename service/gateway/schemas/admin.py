"""Requests and responses of /admin, and errors of every route."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, JsonValue

from service.gateway.schemas.answer import MethodUsed
from service.gateway.schemas.fields import (
    DocId,
    NewDocId,
    Readers,
    StrictModel,
    Title,
    Unicode,
    encodable,
)
from service.messages.reports import GateStateName

Collection = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(encodable)]
JobState = Literal["queued", "running", "succeeded", "failed", "cancelled", "dead"]


class DocumentIn(StrictModel):
    """A document to ingest; the same doc_id again is a new revision."""

    doc_id: NewDocId
    text: Unicode
    title: Title = ""
    metadata: Annotated[dict[str, JsonValue], AfterValidator(encodable)] = Field(
        default_factory=dict
    )
    collection: Collection | None = None
    readers: Readers | None = Field(
        None, description="groups that may read it; none: all of the tenant"
    )


class PrecomputeRequest(StrictModel):
    """POST /admin/precompute. `collection` is that of documents that name none."""

    documents: Annotated[list[DocumentIn], Field(fail_fast=True)] = Field(min_length=1)
    collection: Collection | None = None


class DeletionRequest(StrictModel):
    """POST /admin/deletions: documents by id, or by what their metadata says."""

    collection: Collection = "default"
    doc_ids: Annotated[list[DocId], Field(fail_fast=True)] | None = Field(
        None, min_length=1, max_length=10_000
    )
    filter: dict[str, JsonValue] | None = Field(
        None, min_length=1, description="as in POST /v1/rag/generate"
    )


class JobProgress(BaseModel):
    """`done` documents are stored with their KV, `failed` and `cancelled` ones are not."""

    done: int
    failed: int
    cancelled: int
    total: int


class JobErrorOut(BaseModel):
    doc_id: str
    message: str


class JobStep(BaseModel):
    """A document that takes long: `done` of its `total` chunks are embedded, if that is known."""

    doc_id: str
    step: Literal["waiting", "reading", "embedding"]
    done: int
    total: int
    eta_s: float | None = Field(description="seconds until it is embedded")


class WarningOut(BaseModel):
    """Something of a file that is not in the document's text, or that may be wrong there."""

    code: str = Field(description="what kind of thing, for programs")
    message: str
    places: list[str] = Field(description="pages, slides or sheets; at most 200 of them")
    count: int


class DocumentWarningsOut(BaseModel):
    doc_id: str
    warnings: list[WarningOut]


class JobOut(BaseModel):
    job_id: str
    state: JobState
    progress: JobProgress
    chunks: int
    changes: dict[str, int]
    errors: list[JobErrorOut]
    steps: list[JobStep] = Field([], description="documents that take long, until they are indexed")
    warnings: list[DocumentWarningsOut] = Field(
        description="of documents that are stored, but not all of them"
    )
    warned: int = Field(description="how many documents have warnings")
    waiting: str | None = Field(None, description="why it does not go on at the moment")
    eta_s: float | None = Field(
        None, description="seconds until it ends, at the present rate; null if that is not known"
    )
    created: float
    updated: float


class JobList(BaseModel):
    """Newest first; pass `next_cursor` as `cursor` for the next page."""

    jobs: list[JobOut]
    next_cursor: str | None


class MarkOut(BaseModel):
    """Where a page, slide, sheet or heading begins: its first character in the text."""

    start: int
    kind: Literal["page", "slide", "sheet", "heading"]
    label: str = Field(description="number of the page or slide, name of the sheet, the heading")


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
    pinned: bool
    readers: list[str] = Field(description="groups that may read it; none: all of the tenant")
    text: str | None = None
    marks: list[MarkOut] | None = Field(None, description="of a single document, as is its text")
    warnings: list[WarningOut] | None = Field(None, description="of a single document")


class ChunkOut(BaseModel):
    """A chunk: which characters of the text it is, and what it belongs to."""

    start: int
    end: int
    tokens: int = Field(description="with the title, as it is prefilled")
    page: str | None
    heading: str | None


class DocumentText(BaseModel):
    """What is stored of a document, to look at when an answer is wrong."""

    doc_id: str
    title: str
    text: str
    chunks: list[ChunkOut]
    warnings: list[WarningOut]


class DocumentList(BaseModel):
    documents: list[DocumentOut]
    next_cursor: str | None


class CollectionOut(BaseModel):
    collection: str
    documents: int
    chunks: int
    tokens: int


class CollectionList(BaseModel):
    collections: list[CollectionOut]


class ReceiptOut(BaseModel):
    """What a deletion removed. Text, vectors and search entries are gone when it is answered.

    `kv` counts deleted copies of KV per tier. `owed_chunks` are those whose KV may still be stored,
    because the worker or the `unreached` tiers are away: it is deleted as soon as they are back,
    and `state` is then `completed`.
    """

    receipt_id: str
    state: Literal["completed", "owed"]
    collection: str
    doc_ids: list[str]
    documents: int
    chunks: int
    kv: dict[str, int]
    owed_chunks: int
    unreached: list[str]
    created: float
    completed: float | None


class GateReset(StrictModel):
    """POST /admin/gate/reset."""

    method: str | None = Field(
        None, max_length=128, description="a fusion method, with any parameters; null: all"
    )


class GateMethod(BaseModel):
    """One fusion method with its parameters. `checks` are the last ones of what is used;
    `recovery_…` those of the step below, returned to after `recovery_needed` good ones."""

    fusion: MethodUsed
    state: GateStateName
    used: MethodUsed
    why: str
    for_s: float
    checks: int
    agreement: float | None
    mean_kl: float | None
    recovery_checks: int
    recovery_agreement: float | None
    recovery_kl: float | None
    recovery_needed: int
    trips: int


class Gate(BaseModel):
    """How methods stand at the correctness gate, latest asked for last. `sample`: the share of
    answers that is checked; 0: there is no gate."""

    sample: float
    methods: list[GateMethod]


class AuditEntry(BaseModel):
    """`previous` is the hash of the entry before, `hash` the SHA-256 of this one without it."""

    tenant: str
    number: int
    at: str
    actor: str
    action: str
    details: dict[str, Any]
    route: str
    status: int | None
    request_id: str
    previous: str
    hash: str


class AuditHead(BaseModel):
    """The end of the tenant's entries: note it where nobody can change it, to verify them by."""

    number: int
    hash: str


class AuditPage(BaseModel):
    entries: list[AuditEntry]
    head: AuditHead
    next: int | None


class ErrorObject(BaseModel):
    """`param` names the field that is wrong, `code` is stable and machine-readable."""

    message: str
    type: str
    code: str
    param: str | None


class ErrorOut(BaseModel):
    """Of every route under /v1, as OpenAI's clients expect it."""

    error: ErrorObject


class Problem(BaseModel):
    """Of all other routes: application/problem+json (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    instance: str
    field: str | None = None
