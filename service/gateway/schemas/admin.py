"""Requests of /admin, what stands there for people who run it, and errors of every route."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, JsonValue

from kvstitch.records.answers import MethodUsed
from kvstitch.records.base import record
from kvstitch.service.gateway.schemas.fields import (
    DocId,
    NewDocId,
    Readers,
    StrictModel,
    Title,
    Unicode,
    encodable,
)
from kvstitch.service.messages.replies import GateState

Collection = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(encodable)]


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
    writers: Readers | None = Field(
        None,
        description="groups that may change it, `*`: whoever may read it; null: those it has, of a "
        "new one the sender's",
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


class RenameRequest(StrictModel):
    """POST /admin/renames."""

    collection: Collection = "default"
    doc_id: DocId
    new_id: NewDocId


class GateReset(StrictModel):
    """POST /admin/gate/reset."""

    method: str | None = Field(
        None, max_length=128, description="a fusion method, with any parameters; null: all"
    )


@record
class GateMethod(GateState):
    """One fusion method with its parameters. `checks` are the last ones of what is used;
    `recovery_…` those of the step below, returned to after `recovery_needed` good ones."""

    fusion: MethodUsed  # type: ignore[assignment]
    used: MethodUsed  # type: ignore[assignment]


class Gate(BaseModel):
    """How methods stand at the correctness gate, latest asked for last. `sample`: the share of
    answers that is checked; 0: there is no gate."""

    sample: float
    methods: list[GateMethod]


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
