"""/admin/precompute takes documents in; /admin/jobs says how far ingest jobs are."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from kvstitch.records.documents import Job, JobList, JobState
from service.gateway.documents.jobs.job_store import MAX_ERRORS
from service.gateway.http.dependencies import Ingesting, JobsDep, Limit, UploadDep
from service.gateway.http.openapi import PRECOMPUTE
from service.gateway.http.request_notes import note, noted

router = APIRouter(prefix="/admin", tags=["corpus"])

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
    job = await jobs.submit(principal, noted(request, documents), idempotency_key)
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
