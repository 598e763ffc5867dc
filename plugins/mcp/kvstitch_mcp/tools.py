"""The tools that agents call, and the official SDK's server around them.

They ask the services that the routes ask: `search` what POST /v1/search asks, `ask` what
POST /v1/rag/generate asks, `documents` what GET /admin/documents asks. The SDK takes half a second
and 24 MiB, so this module is imported in the background. The SDK's high-level server is not used:
it has the same tools for every key, and words of its own for arguments that are wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, get_type_hints

import mcp_types as types
from anyio import CancelScope
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, AuthorizationContext
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel
from starlette.requests import Request

from kvstitch.records.documents import Document
from kvstitch.retriever import DocFilter
from kvstitch.service import __version__
from kvstitch.service.errors import KvstitchError, QuotaExceeded, WorkerFault
from kvstitch.service.gateway.admission import CallContext
from kvstitch.service.gateway.auth.access import Principal
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.json_content import validated
from kvstitch.service.gateway.schemas.fields import composed
from kvstitch.service.gateway.schemas.generate import GenerateRequest
from kvstitch.service.gateway.schemas.search import SearchRequest
from kvstitch.service.gateway.search.search_query import document_scope, metadata_filter
from kvstitch_mcp.schemas import (
    AskArguments,
    CitedAnswer,
    DocumentPart,
    Documents,
    DocumentsArguments,
    FoundPassages,
    ListedDocument,
    Passage,
    SearchArguments,
)

logger = logging.getLogger(__name__)
A = TypeVar("A", bound=BaseModel)
T = TypeVar("T")
INSTRUCTIONS: Final = (
    "Documents of this organisation. `ask` answers a question from them and cites the passages; "
    "`search` gives passages to read for yourself; `documents` lists them and gives their text."
)


@dataclass(frozen=True)
class Tool(Generic[A]):
    """A tool; `counted`: a call counts as a request of its key."""

    name: str
    description: str
    scope: str
    counted: bool
    arguments: type[A]
    result: type[BaseModel]
    answer: Callable[[Gateway, A, CallContext], Awaitable[BaseModel]]

    async def call(self, gateway: Gateway, arguments: Any, call: CallContext) -> BaseModel:
        await gateway.access.admit(call.principal, self.scope, counted=self.counted)
        return await self.answer(gateway, validated(arguments, self.arguments), call)

    def described(self) -> types.Tool:
        return types.Tool(
            name=self.name,
            description=self.description,
            input_schema=self.arguments.model_json_schema(),
            output_schema=self.result.model_json_schema(),
            annotations=types.ToolAnnotations(
                read_only_hint=True, idempotent_hint=True, open_world_hint=False
            ),
        )


TOOLS: Final[dict[str, Tool[Any]]] = {}


def tool(scope: str, *, counted: bool = True) -> Callable[[Callable[..., Any]], None]:
    """Make a tool of a function, with its name, its docstring, and the types it takes and gives."""

    def register(answer: Callable[..., Any]) -> None:
        hints = get_type_hints(answer)
        description = " ".join((answer.__doc__ or "").split())
        TOOLS[answer.__name__] = Tool(
            answer.__name__, description, scope, counted, hints["given"], hints["return"], answer
        )

    return register


@tool("generate")
async def search(gateway: Gateway, given: SearchArguments, call: CallContext) -> FoundPassages:
    """Find the passages of the documents that are closest to a query, best first, with document,
    page and score."""
    found = await gateway.searches.search(SearchRequest(**dict(given)), call)
    return FoundPassages(
        passages=[Passage.of(each) for each in found.results],
        ranked_by=found.ranked_by,
        warnings=found.warnings,
    )


@tool("generate")
async def ask(gateway: Gateway, given: AskArguments, call: CallContext) -> CitedAnswer:
    """Answer a question from the documents. The answer cites the passages that it rests on."""
    request = GenerateRequest(**dict(given), include_text=True, cite="marks")
    group = await gateway.answers.open([request], call)
    [result] = await group.collect()
    return CitedAnswer(
        answer=result.text,
        citations=[Passage.of(each) for each in result.citations],
        finish_reason=result.finish_reason,
        warnings=result.warnings,
    )


@tool("admin", counted=False)
async def documents(gateway: Gateway, given: DocumentsArguments, call: CallContext) -> Documents:
    """List the documents that are stored, or give the text of one of them by its doc_id."""
    service = gateway.corpus.documents
    scope = document_scope(call.principal, given.collection)
    if given.doc_id is None:
        where = DocFilter(where=metadata_filter(given.filter), named=composed(given.named))
        page = await service.page(scope, given.limit, given.cursor, where)
        return Documents(
            documents=[ListedDocument(**_listed(each)) for each in page.documents],
            next_cursor=page.next_cursor,
        )
    stored = await service.get(scope, given.doc_id)
    text = stored.text or ""
    end = given.offset + given.max_chars
    return Documents(
        document=DocumentPart(
            **_listed(stored),
            text=text[given.offset : end],
            offset=given.offset,
            next_offset=end if end < len(text) else None,
        )
    )


def _listed(document: Document) -> dict[str, Any]:
    return {
        "doc_id": document.doc_id,
        "title": document.title,
        "chars": document.num_chars,
        "metadata": document.metadata,
    }


def session_manager(gateway: Gateway) -> StreamableHTTPSessionManager:
    """Return the SDK's transport, with the tools that the sender of each message may use."""

    async def list_tools(
        context: ServerRequestContext[Any, Request], params: object
    ) -> types.ListToolsResult:
        assert context.request is not None
        scopes = context.request.state.principal.scopes
        return types.ListToolsResult(
            tools=[each.described() for each in TOOLS.values() if each.scope in scopes]
        )

    async def call_tool(
        context: ServerRequestContext[Any, Request], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        request, called = context.request, TOOLS.get(params.name)
        if called is None:
            known = ", ".join(TOOLS)
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}, only {known}")
        assert request is not None
        state, trace = request.state, request.headers.get("traceparent", "")
        call = CallContext(state.principal, state.arrived, traceparent=trace)
        try:
            result = await _to_its_end(called.call(gateway, params.arguments or {}, call))
        except KvstitchError as error:
            return _failed(error)
        except Exception:
            logger.exception("a call of the tool %s failed", called.name)
            return _failed(WorkerFault("something went wrong here; the log says what"))
        return types.CallToolResult(
            content=[types.TextContent(text=result.model_dump_json(exclude_none=True))],
            structured_content=result.model_dump(mode="json", exclude_none=True),
        )

    schemas = {each.name: each.arguments.model_json_schema() for each in TOOLS.values()}
    server: Server[Any] = Server(
        "kvstitch",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=schemas.get,
    )
    server.middleware.clear()  # a call is traced as every answer is
    return SessionManager(
        server,
        stateless=bool(gateway.settings.database),
        max_request_body_size=gateway.settings.max_request_bytes,
        max_per_owner=gateway.settings.max_sessions_per_key,
    )


class SessionManager(StreamableHTTPSessionManager):
    """The SDK's, with a bound on the sessions of each owner."""

    def __init__(self, app: Server[Any], *, max_per_owner: int, **others: Any) -> None:
        super().__init__(app, **others)
        self._max_per_owner = max_per_owner

    def _admit_session(
        self, requestor: AuthorizationContext | None
    ) -> StreamableHTTPServerTransport | None:
        held = sum(owner == requestor for owner in self._session_owners.values())
        if held >= self._max_per_owner:
            raise QuotaExceeded(
                f"this API key has {held} sessions, which is its limit: end some (DELETE /mcp), or "
                "wait until they do",
                field="sessions_per_key",
                retry_after_s=60.0,
            )
        return super()._admit_session(requestor)


def session_owner(principal: Principal) -> AuthenticatedUser:
    """Return whom a session belongs to: nobody else's key can use or end it."""
    return AuthenticatedUser(
        AccessToken(token="", client_id=principal.key_id, subject=principal.tenant, scopes=[])
    )


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; whoever cancels the call cancels it, and waits until it has cleaned up."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    finally:
        if not task.done():
            task.cancel()
            with CancelScope(shield=True):
                await asyncio.wait({task})


def _failed(error: KvstitchError) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=error.message)], is_error=True)
