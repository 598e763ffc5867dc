"""What routes ask FastAPI for, as `Annotated` aliases.

All dependencies are coroutines: FastAPI would run plain functions in a thread, one hop each per
request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Header, Query, Request
from pydantic.json_schema import SkipJsonSchema

from service.gateway.admission import CallContext
from service.gateway.auth.access import Principal
from service.gateway.composition import Gateway
from service.gateway.documents.document_service import DocumentService
from service.gateway.documents.job_service import JobService
from service.gateway.documents.jobs.job_records import IngestDocument
from service.gateway.http.uploads import read_documents


def gateway_of(request: Request) -> Gateway:
    """Return the gateway, for dependencies of every answer: one of their own takes longer."""
    gateway: Gateway = request.app.state.gateway
    return gateway


async def _gateway(request: Request) -> Gateway:
    return gateway_of(request)


GatewayDep = Annotated[Gateway, Depends(_gateway)]


async def _jobs(gateway: GatewayDep) -> JobService:
    return gateway.corpus.jobs


async def _documents(gateway: GatewayDep) -> DocumentService:
    return gateway.corpus.documents


async def _upload(
    request: Request, gateway: GatewayDep
) -> AsyncIterator[AsyncIterator[IngestDocument]]:
    upload = gateway.corpus.spool.upload()
    try:
        yield read_documents(request, gateway.settings, upload)
    finally:
        await upload.close()


def require_scope(scope: str) -> Callable[[Request], Awaitable[Principal]]:
    """Make a dependency that gives the sender, and refuses API keys that lack this scope."""

    async def admitted(request: Request) -> Principal:
        principal: Principal = request.state.principal
        counted = request.method == "POST"
        await gateway_of(request).access.admit(principal, scope, counted=counted)
        return principal

    return admitted


MAX_DEADLINE_MS = 24 * 3600 * 1000
DEADLINE_HEADER = "X-Request-Deadline-Ms"
Generating = Annotated[Principal, Depends(require_scope("generate"))]
Ingesting = Annotated[Principal, Depends(require_scope("ingest"))]
Administering = Annotated[Principal, Depends(require_scope("admin"))]
ReadingMetrics = Annotated[Principal, Depends(require_scope("metrics"))]


async def _call(
    request: Request,
    principal: Generating,
    deadline_ms: Annotated[
        int | SkipJsonSchema[None],
        Header(
            alias=DEADLINE_HEADER,
            ge=1,
            le=MAX_DEADLINE_MS,
            description="milliseconds after which the answer ends with what there is",
        ),
    ] = None,
) -> CallContext:
    arrived = float(request.state.arrived)
    deadline = None if deadline_ms is None else arrived + deadline_ms / 1000
    return CallContext(principal, arrived, deadline, request.headers.get("traceparent", ""))


JobsDep = Annotated[JobService, Depends(_jobs)]
DocumentsDep = Annotated[DocumentService, Depends(_documents)]
CallContextDep = Annotated[CallContext, Depends(_call)]
UploadDep = Annotated[AsyncIterator[IngestDocument], Depends(_upload)]
CollectionName = Annotated[
    str, Query(alias="collection", min_length=1, max_length=128, description="of the tenant")
]
Limit = Annotated[int, Query(ge=1, le=1000)]
