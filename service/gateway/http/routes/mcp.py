"""/mcp: the tools of service.gateway.http.mcp, over the Model Context Protocol."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.gateway.http.mcp.server import McpServer

router = APIRouter(include_in_schema=False)


class McpResponse(Response):
    """What the protocol's transport answers."""

    def __init__(self, server: McpServer) -> None:
        super().__init__()
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._server.handle(scope, receive, send)


@router.post("/mcp")
@router.delete("/mcp")
async def mcp(request: Request) -> McpResponse:
    """A message; DELETE ends a session. Nothing is sent unasked, so GET is a 405."""
    return McpResponse(request.app.state.mcp)
