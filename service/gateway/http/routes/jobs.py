"""/admin/jobs: how far ingest jobs are."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query

from service.gateway.documents.jobs.job_records import OPEN_STATES, Job
from service.gateway.documents.jobs.job_state import MAX_ERRORS
from service.gateway.http.dependencies import Ingesting, JobsDep, Limit
from service.gateway.schemas.admin import JobList, JobOut, JobProgress, JobState

router = APIRouter(prefix="/admin/jobs", tags=["corpus"])

MaxErrors = Annotated[
    int, Query(ge=0, le=10_000, description="most documents that failed to be named in `errors`")
]


@router.get("")
async def jobs(
    principal: Ingesting,
    job_service: JobsDep,
    limit: Limit = 50,
    cursor: str | None = None,
    state: JobState | None = None,
) -> JobList:
    """Jobs newest first; pass `next_cursor` as `cursor` for the next page."""
    page = await job_service.page(principal, limit, cursor, state)
    waiting = await job_service.waiting()
    return JobList(jobs=[job_out(job, waiting) for job in page.jobs], next_cursor=page.next_cursor)


@router.get("/{job_id}")
async def job(
    principal: Ingesting, job_id: str, job_service: JobsDep, errors: MaxErrors = MAX_ERRORS
) -> JobOut:
    """How far a job is, and what is wrong with documents that failed."""
    found = await job_service.get(principal, job_id, errors)
    return job_out(found, await job_service.waiting())


@router.delete("/{job_id}")
async def cancel(principal: Ingesting, job_id: str, job_service: JobsDep) -> JobOut:
    """Leave what is not done. Documents that are indexed stay; their KV is computed when asked."""
    return job_out(await job_service.cancel(principal, job_id))


def job_out(job: Job, waiting: str | None = None) -> JobOut:
    """A job for the response; `waiting` says why open jobs do not go on."""
    fields = asdict(job)
    del fields["tokens_ahead"]
    if waiting is not None:
        fields["eta_s"] = None
    counts = {name: fields.pop(name) for name in ("done", "failed", "cancelled", "total")}
    return JobOut(
        **fields,
        progress=JobProgress(**counts),
        waiting=waiting if job.state in OPEN_STATES else None,
    )
