"""/mcp: the tools of tools.py, over the Model Context Protocol's streamable HTTP.

    POST /mcp ── Authentication ── McpPart ── the SDK's transport ── tool ── service

Who asks is who sent the POST: permissions are those of its key, whatever session it names. Clients
of revision 2026-07-28 have no session, and cancel a call by closing its connection. Earlier ones
have one, which a cancellation names; it lives in one gateway, so gateways that share a database
keep none, and a client of theirs cancels as the newer ones do.
"""

from __future__ import annotations

import asyncio
import json
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from kvstitch.service.errors import BodyTooLarge
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.http.dependencies import note
from kvstitch.service.gateway.json_content import has_more_values
from kvstitch.service.plugins import GatewayPart

MAX_NOTED_CHARS = 64


class McpPart(GatewayPart):
    """Answers the requests of /mcp between `start` and `close`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.routers = (self._router(),)
        self._started: asyncio.Future[tuple[ModuleType, Any]] | None = None  # tools and transport
        self._running: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def _router(self) -> APIRouter:
        """Return the routes. Nothing is sent unasked, so GET is a 405."""
        router = APIRouter()

        @router.post("/mcp", openapi_extra=MESSAGE, responses=ANSWERS, response_model=None)
        async def mcp() -> McpResponse:
            """A message of the Model Context Protocol."""
            return McpResponse(self)

        @router.delete("/mcp", include_in_schema=False)
        async def end_mcp_session() -> McpResponse:
            """End a session; answers are the SDK's, with types that OpenAPI could not be told."""
            return McpResponse(self)

        return router

    async def start(self) -> None:
        """Begin to load the SDK, before clients give up waiting; requests wait for it."""
        self._started = asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self._run(self._started))

    async def close(self) -> None:
        """End all sessions, and calls that are under way."""
        self._closing.set()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whose sender is known; raises BodyTooLarge."""
        request = Request(scope, receive)
        body = await request.body()
        limit = self._gateway.settings.max_body_values
        if has_more_values(body, limit):
            raise BodyTooLarge(
                f"the body holds more than {limit} values: send fewer arguments", field="body"
            )
        assert self._started is not None
        tools, manager = await asyncio.shield(self._started)
        if hasattr(request.state, "notes"):
            _note(request, body)
        scope = {**scope, "user": tools.session_owner(request.state.principal)}
        await manager.handle_request(scope, _after(body, receive), send)

    async def _run(self, started: asyncio.Future[tuple[ModuleType, Any]]) -> None:
        """Hold the transport open: its tasks belong to the task that opened it."""
        try:
            tools = await asyncio.to_thread(import_module, "kvstitch_mcp.tools")
            manager = tools.session_manager(self._gateway)
            async with manager.run():
                started.set_result((tools, manager))
                await self._closing.wait()
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise


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


class McpResponse(Response):
    """What the protocol's transport answers."""

    def __init__(self, part: McpPart) -> None:
        super().__init__()
        self._part = part

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._part.handle(scope, receive, send)


def _failure(description: str) -> dict[str, Any]:
    answer = {"schema": {**_ANSWER, "required": ["jsonrpc", "error"]}}
    return {"description": description, "content": {"application/json": answer}}


def _header(name: str, description: str) -> dict[str, Any]:
    shown = {"schema": {"type": "string"}, "description": description}
    return {"name": name, "in": "header", "required": False, **shown}


_ERROR: Final = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {"code": {"type": "integer"}, "message": {"type": "string"}, "data": {}},
}
_ANSWER: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["jsonrpc"],
    "properties": {
        "jsonrpc": {"const": "2.0"},
        "id": {"type": ["string", "integer", "null"]},
        "error": _ERROR,
    },
}
_RESULT: Final = {"result": {"type": "object"}}
_MESSAGE: Final = {
    "type": "object",
    "required": ["jsonrpc", "method"],
    "properties": {
        "jsonrpc": {"const": "2.0"},
        "id": {"type": ["string", "integer"]},
        "method": {"type": "string"},
        "params": {"type": "object"},
    },
}
# What tools take and give is told by the protocol itself (`tools/list`).
MESSAGE: Final[dict[str, Any]] = {
    "parameters": [
        _header(
            "MCP-Protocol-Version", "revision of the protocol, in every message but `initialize`"
        ),
        _header("Mcp-Method", "the message's method, since revision 2026-07-28"),
        _header("Mcp-Name", "the tool that is called, since revision 2026-07-28"),
        _header(
            "Mcp-Session-Id",
            "of the session that `initialize` has begun, before revision 2026-07-28",
        ),
    ],
    "requestBody": {"required": True, "content": {"application/json": {"schema": _MESSAGE}}},
}
ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The answer, as JSON or as the last of the events",
        "content": {
            "application/json": {
                "schema": {**_ANSWER, "properties": {**_ANSWER["properties"], **_RESULT}}
            },
            "text/event-stream": {"schema": {"type": "string"}},
        },
    },
    202: {"description": "A notification was taken"},
    400: _failure("No message of the protocol, or headers that say otherwise"),
    404: _failure("No such session, or no such method"),
    406: _failure("Accept does not name application/json and text/event-stream"),
}
