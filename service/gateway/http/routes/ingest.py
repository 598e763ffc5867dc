"""POST /admin/precompute: takes documents in."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Response

from service.gateway.http.dependencies import Ingesting, JobsDep, UploadDep
from service.gateway.http.openapi_bodies import PRECOMPUTE
from service.gateway.http.routes.jobs import job_out
from service.gateway.schemas.admin import JobOut

router = APIRouter(prefix="/admin", tags=["corpus"])

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
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> JobOut:
    """Ingest documents: parse, chunk, embed, index, and store their KV. Accepted means on disk."""
    job = await jobs.submit(principal, documents, idempotency_key)
    response.headers["Location"] = f"/admin/jobs/{job.job_id}"
    return job_out(job)
