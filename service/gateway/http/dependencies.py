"""What routes ask for, as `Annotated` aliases. Knows where things are kept, not what they do.

All of them are coroutines: plain functions would be run in threads, a hop each per request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Header, Query, Request
from pydantic.json_schema import SkipJsonSchema

from service.gateway.answers.call_context import CallContext
from service.gateway.auth.access import Principal
from service.gateway.composition import Gateway
from service.gateway.corpus.corpus import Corpus
from service.gateway.corpus.job_records import UploadedDocument
from service.gateway.http.uploads import UploadLimits, read_documents


def _of(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


async def _gateway(request: Request) -> Gateway:
    return _of(request)


async def _corpus(request: Request) -> Corpus:
    return _of(request).corpus


async def _upload(request: Request) -> AsyncIterator[UploadedDocument]:
    settings = _of(request).settings
    limits = UploadLimits(
        settings.max_documents, settings.max_document_bytes, settings.max_pdf_bytes
    )
    return read_documents(request, limits)


def _having(scope: str) -> Callable[[Request], Awaitable[Principal]]:
    """The sender, if it may do what `scope` stands for. Raises Forbidden, QuotaExceeded."""

    async def admitted(request: Request) -> Principal:
        principal: Principal = request.state.principal
        _of(request).access.admit(principal, scope, counted=request.method == "POST")
        return principal

    return admitted


MAX_DEADLINE_MS = 24 * 3600 * 1000
DEADLINE = "X-Request-Deadline-Ms"
Generating = Annotated[Principal, Depends(_having("generate"))]
Ingesting = Annotated[Principal, Depends(_having("ingest"))]
Administering = Annotated[Principal, Depends(_having("admin"))]
ReadingMetrics = Annotated[Principal, Depends(_having("metrics"))]


async def _call(
    request: Request,
    principal: Generating,
    deadline_ms: Annotated[
        int | SkipJsonSchema[None],
        Header(
            alias=DEADLINE,
            ge=1,
            le=MAX_DEADLINE_MS,
            description="milliseconds after which the answer ends with what there is",
        ),
    ] = None,
) -> CallContext:
    arrived = float(request.state.arrived)
    deadline = None if deadline_ms is None else arrived + deadline_ms / 1000
    return CallContext(principal, arrived, deadline, request.headers.get("traceparent", ""))


GatewayDep = Annotated[Gateway, Depends(_gateway)]
CorpusDep = Annotated[Corpus, Depends(_corpus)]
CallContextDep = Annotated[CallContext, Depends(_call)]
Upload = Annotated[AsyncIterator[UploadedDocument], Depends(_upload)]
CollectionName = Annotated[
    str, Query(alias="collection", min_length=1, max_length=128, description="of the tenant")
]
Limit = Annotated[int, Query(ge=1, le=1000)]
