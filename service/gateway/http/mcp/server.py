"""The official SDK's server around the tools, and its streamable HTTP.

    POST /mcp ── Authentication ── McpServer ── the SDK's transport ── tool ── service

Who asks is who sent the POST: permissions are those of its key, whatever session it names. Clients
of revision 2026-07-28 have no session, and cancel a call by closing its connection. Earlier ones
have one, which a cancellation names; it lives in one gateway, so gateways that share a database
keep none, and a client of theirs cancels as the newer ones do.

The SDK takes half a second of a core and 24 MiB: it is loaded in the background when the gateway
starts, because clients give up after a few seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from service import __version__
from service.errors import BodyTooLarge, KvstitchError, Unroutable, WorkerFault
from service.gateway.admission import CallContext
from service.gateway.auth.access import Principal
from service.gateway.composition import Gateway
from service.gateway.http.mcp.tools import INSTRUCTIONS, TOOLS, Tool
from service.gateway.http.request_notes import note, notes_of
from service.gateway.json_content import has_more_values

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.server.context import ServerRequestContext
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

logger = logging.getLogger(__name__)

T = TypeVar("T")
MAX_NOTED_CHARS = 64


class McpServer:
    """Answers the requests of /mcp between `start` and `close`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._manager: asyncio.Future[StreamableHTTPSessionManager] | None = None  # None: no SDK
        self._running: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def start(self) -> None:
        """Begin to load the SDK, where it is installed; requests wait for it."""
        if find_spec("mcp") is not None:
            self._manager = asyncio.get_running_loop().create_future()
            self._running = asyncio.create_task(self._run(self._manager))

    async def close(self) -> None:
        """End all sessions, and calls that are under way."""
        self._closing.set()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Its sender is known.

        Raises:
            BodyTooLarge: The body holds more values than a body may.
            Unroutable: The SDK is not installed.
        """
        request = Request(scope, receive)
        body = await request.body()
        limit = self._gateway.settings.max_body_values
        if has_more_values(body, limit):
            raise BodyTooLarge(
                f"the body holds more than {limit} values: send fewer arguments", field="body"
            )
        if self._manager is None:
            raise Unroutable(
                404, "this service was installed without MCP: pip install 'kvstitch[mcp]'"
            )
        manager = await asyncio.shield(self._manager)
        if notes_of(request) is not None:
            _note(request, body)
        scope = {**scope, "user": _owner(request.state.principal)}
        await manager.handle_request(scope, _after(body, receive), send)

    async def _run(self, started: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        """Hold the transport open: its tasks belong to the task that opened it."""
        try:
            manager = await asyncio.to_thread(self._load)
            async with manager.run():
                started.set_result(manager)
                await self._closing.wait()
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    def _load(self) -> StreamableHTTPSessionManager:
        from mcp.server.lowlevel import Server
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        schemas = {tool.name: tool.arguments.model_json_schema() for tool in TOOLS.values()}
        server: Server[Any] = Server(
            "kvstitch",
            version=__version__,
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            get_tool_input_schema=schemas.get,
        )
        server.middleware.clear()  # a call is traced as every answer is
        settings = self._gateway.settings
        return StreamableHTTPSessionManager(
            server,
            stateless=bool(settings.database),
            max_request_body_size=settings.max_request_bytes,
        )

    async def _list_tools(
        self, context: ServerRequestContext[Any, Request], params: object
    ) -> types.ListToolsResult:
        """Those that the key may use."""
        import mcp_types as types

        scopes = _sender(context).scopes
        return types.ListToolsResult(
            tools=[_described(tool) for tool in TOOLS.values() if tool.scope in scopes]
        )

    async def _call_tool(
        self, context: ServerRequestContext[Any, Request], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        import mcp_types as types
        from mcp.shared.exceptions import MCPError

        tool = TOOLS.get(params.name)
        if tool is None:
            known = ", ".join(TOOLS)
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}, only {known}")
        assert context.request is not None
        call = CallContext(
            _sender(context),
            context.request.state.arrived,
            traceparent=context.request.headers.get("traceparent", ""),
        )
        try:
            result = await _to_its_end(tool.call(self._gateway, params.arguments or {}, call))
        except KvstitchError as error:
            return _failed(error)
        except Exception:
            logger.exception("a call of the tool %s failed", tool.name)
            return _failed(WorkerFault("something went wrong here; the log says what"))
        return _given(result)


def _note(request: Request, body: bytes) -> None:
    """Note what a message asks; whether it may, is found out later."""
    try:
        message = json.loads(body)
        method, params = message["method"], message.get("params") or {}
        arguments = params.get("arguments") or {}
        asked = arguments.get("question", arguments.get("query"))
    except (ValueError, RecursionError, LookupError, AttributeError, TypeError):
        return  # it will be refused
    note(request, method=str(method)[:MAX_NOTED_CHARS])
    if method == "tools/call":
        note(request, tool=str(params.get("name"))[:MAX_NOTED_CHARS])
    if isinstance(asked, str):
        note(request, questions=[asked])


def _sender(context: ServerRequestContext[Any, Request]) -> Principal:
    assert context.request is not None
    principal: Principal = context.request.state.principal
    return principal


def _owner(principal: Principal) -> object:
    """Return whom a session belongs to: nobody else's key can use or end it."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    owner = AccessToken(token="", client_id=principal.key_id, subject=principal.tenant, scopes=[])
    return AuthenticatedUser(owner)


def _after(body: bytes, receive: Receive) -> Receive:
    """Return what receives a body that was read, and then what comes behind it."""
    unread = True

    async def receive_again() -> Message:
        nonlocal unread
        if unread:
            unread = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return receive_again


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; whoever cancels the call cancels it, and waits until it has cleaned up."""
    from anyio import CancelScope

    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    finally:
        if not task.done():
            task.cancel()
            with CancelScope(shield=True):
                await asyncio.wait({task})


def _described(tool: Tool[Any]) -> types.Tool:
    import mcp_types as types

    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.arguments.model_json_schema(),
        output_schema=tool.result.model_json_schema(),
        annotations=types.ToolAnnotations(
            read_only_hint=True, idempotent_hint=True, open_world_hint=False
        ),
    )


def _given(result: BaseModel) -> types.CallToolResult:
    import mcp_types as types

    text = result.model_dump_json(exclude_none=True)
    return types.CallToolResult(
        content=[types.TextContent(text=text)],
        structured_content=result.model_dump(mode="json", exclude_none=True),
    )


def _failed(error: KvstitchError) -> types.CallToolResult:
    import mcp_types as types

    return types.CallToolResult(content=[types.TextContent(text=error.message)], is_error=True)
