"""/admin: documents in, documents out, and the jobs in between."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Response

from retriever import DocumentInfo
from service.gateway.dependencies import Administering, CorpusDep, Ingesting, Limit, Upload
from service.gateway.job_records import Job
from service.gateway.schemas import DeletedOut, DocumentList, DocumentOut, JobOut, JobProgress
from service.gateway.uploads import BODY

router = APIRouter(prefix="/admin", tags=["corpus"])


@router.post("/precompute", status_code=202, openapi_extra=BODY)
async def precompute(
    principal: Ingesting, documents: Upload, corpus: CorpusDep, response: Response
) -> JobOut:
    """Ingest documents: chunk, embed, index, and store their KV. Accepted means on disk."""
    job = await corpus.submit(documents)
    response.headers["Location"] = f"/admin/jobs/{job.job_id}"
    return _job(job)


@router.get("/jobs/{job_id}")
async def job(job_id: str, corpus: CorpusDep, principal: Ingesting) -> JobOut:
    return _job(await corpus.job(job_id))


@router.get("/documents")
async def documents(
    corpus: CorpusDep, principal: Administering, limit: Limit = 100, cursor: str | None = None
) -> DocumentList:
    """Documents by doc_id; pass `next_cursor` as `cursor` for the next page."""
    page = await corpus.documents(limit, cursor)
    return DocumentList(documents=[_info(d) for d in page.documents], next_cursor=page.next_cursor)


@router.get("/documents/{doc_id:path}")
async def document(doc_id: str, corpus: CorpusDep, principal: Administering) -> DocumentOut:
    stored = await corpus.document(doc_id)
    return _info(stored.info, stored.document.text)


@router.delete("/documents/{doc_id:path}")
async def delete(doc_id: str, corpus: CorpusDep, principal: Administering) -> DeletedOut:
    """Remove a document: text, vectors, and KV in every tier."""
    return DeletedOut(**asdict(await corpus.delete(doc_id)))


def _job(job: Job) -> JobOut:
    fields = asdict(job)
    counts = {name: fields.pop(name) for name in ("done", "failed", "total")}
    return JobOut(**fields, progress=JobProgress(**counts))


def _info(info: DocumentInfo, text: str | None = None) -> DocumentOut:
    return DocumentOut(**{**asdict(info), "metadata": dict(info.metadata), "text": text})
