"""What routes ask of a request: the gateway, who sends it, its JSON body, and notes about it.

All dependencies are coroutines: FastAPI would run plain functions in a thread, one hop each per
request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Header, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import SkipJsonSchema
from starlette.types import Scope

from kvstitch.service.errors import Forbidden, UnsupportedMediaType
from kvstitch.service.gateway.admission import CallContext
from kvstitch.service.gateway.auth.access import Principal
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.documents.document_service import DocumentService
from kvstitch.service.gateway.documents.job_service import JobService
from kvstitch.service.gateway.json_content import read_json

T = TypeVar("T")
INLINE_BYTES = 16_384  # shorter bodies are parsed at once: a change of threads takes longer
MAX_DEADLINE_MS = 24 * 3600 * 1000
DEADLINE_HEADER = "X-Request-Deadline-Ms"
MOST_NAMES: Final = 100  # of documents of one request that are noted
QUESTIONS: Final = "questions"  # the note with texts that were asked


async def _gateway(request: Request) -> Gateway:
    gateway: Gateway = request.app.state.gateway
    return gateway


GatewayDep = Annotated[Gateway, Depends(_gateway)]


async def _jobs(gateway: GatewayDep) -> JobService:
    return gateway.corpus.jobs


async def _documents(gateway: GatewayDep) -> DocumentService:
    return gateway.corpus.documents


def require_scope(scope: str) -> Callable[[Request], Awaitable[Principal]]:
    """Make a dependency that gives the sender, and refuses API keys that lack this scope."""

    async def admitted(request: Request) -> Principal:
        principal: Principal = request.state.principal
        counted = request.method == "POST"
        await request.app.state.gateway.access.admit(principal, scope, counted=counted)
        return principal

    return admitted


def of_all(principal: Principal) -> None:
    """Raise Forbidden for numbers of the whole service, unless the sender reads all of the unnamed
    tenant's documents, as an operator does."""
    if principal.limited:
        raise Forbidden(
            "this is of the whole service, with documents of others: use a key of the unnamed "
            "tenant that reads all groups"
        )


Generating = Annotated[Principal, Depends(require_scope("generate"))]
Ingesting = Annotated[Principal, Depends(require_scope("ingest"))]
Administering = Annotated[Principal, Depends(require_scope("admin"))]
ReadingMetrics = Annotated[Principal, Depends(require_scope("metrics"))]


async def _call(
    request: Request,
    gateway: GatewayDep,
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
    principal: Principal = request.state.principal
    await gateway.access.admit(principal, "generate", counted=True)
    arrived = float(request.state.arrived)
    deadline = None if deadline_ms is None else arrived + deadline_ms / 1000
    return CallContext(principal, arrived, deadline, request.headers.get("traceparent", ""))


JobsDep = Annotated[JobService, Depends(_jobs)]
DocumentsDep = Annotated[DocumentService, Depends(_documents)]
CallContextDep = Annotated[CallContext, Depends(_call)]
CollectionName = Annotated[
    str, Query(alias="collection", min_length=1, max_length=128, description="of the tenant")
]
Limit = Annotated[int, Query(ge=1, le=1000)]


class JsonRoute(APIRoute):
    """A route whose JSON body is parsed and validated here instead of by FastAPI.

    A short body can ask for much: every three bytes of `[[],[],…]` become an object of a hundred,
    and an error of several hundred if they are in the wrong place. So the values of a body are
    counted before it is parsed, lists stop at their first error, and a long body is parsed in a
    thread.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        model = self.body_field.field_info.annotation if self.body_field else None
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return handle

        async def handle_json(request: Request) -> Response:
            headers = request.headers
            sent = headers.get("content-type", "").partition(";")[0].strip().lower()
            kind, _, subtype = sent.partition("/")
            is_json = kind == "application" and (subtype == "json" or subtype.endswith("+json"))
            empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
            if not is_json and (sent or not empty):
                raise UnsupportedMediaType(
                    f"the body is {sent or 'of no type'}, this route reads JSON: send "
                    "Content-Type: application/json"
                )
            return await handle(_JsonRequest(request, model))

        return handle_json


class _JsonRequest(Request):
    """A request whose `json` is the validated model, which FastAPI takes as it is."""

    def __init__(self, request: Request, model: type[BaseModel]) -> None:
        super().__init__(request.scope, request.receive)
        self._model = model

    async def json(self) -> Any:
        limit: int = self.app.state.gateway.settings.max_body_values
        body = await self.body()
        if len(body) <= INLINE_BYTES:
            return read_json(body, limit, self._model)
        return await asyncio.to_thread(read_json, body, limit, self._model)


def take_notes(scope: Scope) -> dict[str, Any]:
    """Return what gets the notes that routes make about this request.

    Whoever keeps a record of requests calls it before the route; else notes are dropped.
    """
    notes: dict[str, Any] = {}
    scope.setdefault("state", {})["notes"] = notes
    return notes


def note(request: Request, **details: Any) -> None:
    """Note something about a request."""
    notes: dict[str, Any] | None = getattr(request.state, "notes", None)
    if notes is not None:
        notes |= details
