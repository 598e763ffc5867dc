"""/admin/precompute takes documents in, /admin/jobs says how far that is; stored documents, pins,
deletions, receipts and collections."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response

from kvstitch.records.documents import (
    CollectionList,
    Document,
    DocumentList,
    DocumentText,
    Job,
    JobList,
    JobState,
    Receipt,
    SourceDocument,
    StoredChunk,
)
from kvstitch.retriever import DocFilter, Scope
from kvstitch.service.errors import InvalidRequest, NotFound
from kvstitch.service.gateway.documents.document_service import no_document
from kvstitch.service.gateway.documents.jobs.job_store import MAX_ERRORS
from kvstitch.service.gateway.http.dependencies import (
    MOST_NAMES,
    Administering,
    CollectionName,
    DocumentsDep,
    Ingesting,
    JobsDep,
    JsonRoute,
    Limit,
    note,
)
from kvstitch.service.gateway.http.openapi import PRECOMPUTE
from kvstitch.service.gateway.http.uploads import UploadDep
from kvstitch.service.gateway.schemas.admin import DeletionRequest, RenameRequest
from kvstitch.service.gateway.schemas.fields import composed
from kvstitch.service.gateway.search.search_query import document_scope, metadata_filter

router = APIRouter(prefix="/admin", tags=["corpus"], route_class=JsonRoute)

MAX_FILTER_CHARS = 8192
MaxErrors = Annotated[
    int, Query(ge=0, le=10_000, description="most documents that failed to be named in `errors`")
]

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="the same key with the same documents is answered with the same job",
    ),
]


@router.post("/precompute", status_code=202, openapi_extra=PRECOMPUTE)
async def precompute(
    principal: Ingesting,
    documents: UploadDep,
    jobs: JobsDep,
    request: Request,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> Job:
    """Ingest documents: parse, chunk, embed, index, and store their KV. Accepted means on disk."""
    job = await jobs.submit(principal, documents, idempotency_key)
    note(request, job_id=job.job_id)
    response.headers["Location"] = f"/admin/jobs/{job.job_id}"
    return job


@router.get("/jobs")
async def jobs(
    principal: Ingesting,
    job_service: JobsDep,
    limit: Limit = 50,
    cursor: str | None = None,
    state: JobState | None = None,
) -> JobList:
    """Jobs newest first; pass `next_cursor` as `cursor` for the next page."""
    return await job_service.page(principal, limit, cursor, state)


@router.get("/jobs/{job_id}")
async def job(
    principal: Ingesting, job_id: str, job_service: JobsDep, errors: MaxErrors = MAX_ERRORS
) -> Job:
    """How far a job is, and what is wrong with documents that failed."""
    return await job_service.get(principal, job_id, errors)


@router.delete("/jobs/{job_id}")
async def cancel(principal: Ingesting, job_id: str, job_service: JobsDep) -> Job:
    """Leave what is not done. Documents that are indexed stay; their KV is computed when asked."""
    return await job_service.cancel(principal, job_id)


async def _scope(principal: Administering, collection: CollectionName = "default") -> Scope:
    return document_scope(principal, collection)


ScopeDep = Annotated[Scope, Depends(_scope)]


@router.get("/documents")
async def documents(
    principal: Administering,
    service: DocumentsDep,
    *,
    collection: CollectionName = "default",
    limit: Limit = 100,
    cursor: str | None = None,
    q: Annotated[
        str, Query(max_length=512, description="only where id or title contains it, in any case")
    ] = "",
    filter: Annotated[
        str | None,
        Query(max_length=MAX_FILTER_CHARS, description="JSON, as in POST /v1/rag/generate"),
    ] = None,
) -> DocumentList:
    """Documents by doc_id; pass `next_cursor` as `cursor` for the next page."""
    where = DocFilter(where=metadata_filter(_conditions(filter)), named=composed(q))
    return await service.page(document_scope(principal, collection), limit, cursor, where)


@router.get("/documents/{doc_id:path}/text")
async def text(doc_id: str, scope: ScopeDep, service: DocumentsDep) -> DocumentText | Document:
    """What is stored of a document: its text, where its chunks are, and what is not in it."""
    try:
        stored = await service.get(scope, doc_id)
    except NotFound:
        # A document may be called so.
        try:
            return await document(f"{doc_id}/text", scope, service)
        except NotFound:
            raise no_document(doc_id) from None
    return DocumentText(
        doc_id=stored.doc_id,
        title=stored.title,
        text=stored.text or "",
        chunks=[
            StoredChunk(
                start=chunk.char_start, end=chunk.char_end, tokens=chunk.tokens,
                page=chunk.page, heading=chunk.heading,
            )
            for chunk in await service.chunks(scope, stored.doc_id)
        ],
        warnings=stored.warnings or [],
    )  # fmt: skip


@router.get("/documents/{doc_id:path}")
async def document(doc_id: str, scope: ScopeDep, service: DocumentsDep) -> Document:
    """A document with its text."""
    return await service.get(scope, doc_id)


@router.delete("/documents/{doc_id:path}")
async def delete(doc_id: str, scope: ScopeDep, service: DocumentsDep, request: Request) -> Receipt:
    """Remove a document: text, vectors, and KV in every tier."""
    return _deleted(request, await service.delete(scope, doc_id))


@router.post("/deletions")
async def delete_many(
    principal: Administering, body: DeletionRequest, service: DocumentsDep, request: Request
) -> Receipt:
    """Remove documents by id or by metadata; ids that are not there are ignored."""
    if (body.doc_ids is None) == (body.filter is None):
        raise InvalidRequest("send either doc_ids or filter", field="filter")
    where = None
    if body.filter is not None:
        try:
            where = DocFilter(None, metadata_filter(body.filter))
        except InvalidRequest as error:
            raise InvalidRequest(f"filter: {error.message}", field="filter") from error
    scope = document_scope(principal, body.collection)
    note(request, collection=body.collection)
    return _deleted(request, await service.delete_matching(scope, body.doc_ids, where))


@router.post("/renames")
async def rename(
    principal: Administering, body: RenameRequest, service: DocumentsDep, request: Request
) -> Document:
    """Give a document another id. Nothing is computed anew, unless its title was made of the id."""
    scope = document_scope(principal, body.collection)
    note(request, collection=body.collection, doc_ids=[body.doc_id, body.new_id])
    return await service.rename(scope, body.doc_id, body.new_id)


@router.get("/sources/{source}")
async def source(
    principal: Administering, source: str, service: DocumentsDep
) -> list[SourceDocument]:
    """Documents that were sent with this `?source=` last, in any collection."""
    return await service.of_source(principal, source)


@router.get("/receipts/{receipt_id}")
async def receipt(principal: Administering, receipt_id: str, service: DocumentsDep) -> Receipt:
    """A deletion's receipt, and whether anything is still owed."""
    return await service.receipt(principal, receipt_id)


@router.put("/pins/{doc_id:path}")
async def pin(doc_id: str, scope: ScopeDep, service: DocumentsDep) -> Document:
    """Keep a document's KV stored: what a tier evicts is computed again in spare time."""
    return await service.set_pinned(scope, doc_id, True)


@router.delete("/pins/{doc_id:path}")
async def unpin(doc_id: str, scope: ScopeDep, service: DocumentsDep) -> Document:
    """Let a document's KV be evicted like any other."""
    return await service.set_pinned(scope, doc_id, False)


@router.get("/collections")
async def collections(principal: Administering, service: DocumentsDep) -> CollectionList:
    """Collections that have documents; the first document makes one, the last one ends it."""
    return CollectionList(collections=await service.collections(principal))


@router.delete("/collections/{collection:path}", name="delete")
async def delete_collection(
    principal: Administering,
    collection: Annotated[str, Path(min_length=1, max_length=128)],
    service: DocumentsDep,
    request: Request,
) -> Receipt:
    """Remove all documents of a collection: text, vectors, and KV in every tier."""
    scope = document_scope(principal, collection)
    return _deleted(request, await service.delete_matching(scope, None, None))


def _conditions(text: str | None) -> dict[str, Any] | None:
    """Return the filter of a query string.

    Raises:
        InvalidRequest: It is no JSON object.
    """
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"filter: is not valid JSON: {error}", field="filter") from error
    if not isinstance(found, dict):
        raise InvalidRequest(
            'filter: must be an object such as {"year": {"gte": 2020}}', field="filter"
        )
    return found


def _deleted(request: Request, receipt: Receipt) -> Receipt:
    names = list(receipt.doc_ids[:MOST_NAMES])
    note(request, receipt_id=receipt.receipt_id, documents=receipt.documents, doc_ids=names)
    return receipt
