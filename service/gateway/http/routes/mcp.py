"""/mcp: the tools of service.gateway.http.mcp, over the Model Context Protocol."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.gateway.http.mcp.description import ANSWERS, END, ENDED, MESSAGE
from service.gateway.http.mcp.server import McpServer

router = APIRouter()


class McpResponse(Response):
    """What the protocol's transport answers."""

    def __init__(self, server: McpServer) -> None:
        super().__init__()
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._server.handle(scope, receive, send)


# Nothing is sent unasked, so GET is a 405.


@router.post("/mcp", openapi_extra=MESSAGE, responses=ANSWERS, response_model=None)
async def mcp(request: Request) -> McpResponse:
    """A message of the Model Context Protocol."""
    return McpResponse(request.app.state.mcp)


@router.delete("/mcp", openapi_extra=END, responses=ENDED, response_model=None)
async def end_mcp_session(request: Request) -> McpResponse:
    """End a session."""
    return McpResponse(request.app.state.mcp)
