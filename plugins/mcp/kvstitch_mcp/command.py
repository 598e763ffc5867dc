"""`kvstitch mcp`: the tools of a running service for programs that start their tools themselves.

    agent ── stdin, stdout ── kvstitch mcp ── POST /mcp ── service

It has no tools of its own. What it lists and what a call gives is what the service says to the key.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from kvstitch.service import __version__
from kvstitch.service.cli.options import CommandError, add_client_options

if TYPE_CHECKING:
    import httpx2
    from mcp.client.client import Client
    from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult

T = TypeVar("T")
CONNECT_S = 30.0
SILENCE_S = 600.0  # the service says every 15 s that it is still there


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Speaks the Model Context Protocol on stdin and stdout: an agent's settings name this "
        "command. Agents that speak HTTP use the service's /mcp instead."
    )
    add_client_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Serve until stdin ends."""
    key = args.api_key or os.environ.get("KVSTITCH_API_KEY")
    asyncio.run(_serve(args.url.rstrip("/") + "/mcp", key))
    return 0


async def _serve(url: str, key: str | None) -> None:
    import httpx2
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    async with httpx2.AsyncClient(
        headers={} if key is None else {"Authorization": f"Bearer {key}"},
        timeout=httpx2.Timeout(CONNECT_S, read=SILENCE_S),
        event_hooks={"response": [_raise_refusal]},
    ) as http:
        service = _Service(url, http)
        server: Server[Any] = Server(
            "kvstitch",
            version=__version__,
            instructions=await service.instructions(),
            on_list_tools=service.list_tools,
            on_call_tool=service.call_tool,
        )
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())


async def _raise_refusal(response: httpx2.Response) -> None:
    """Raise what the service says where it refuses a request before MCP sees it."""
    if response.headers.get("content-type", "").startswith("application/problem+json"):
        await response.aread()
        problem = response.json()
        raise CommandError(
            f"{problem['detail']} (HTTP {response.status_code})", code=problem["code"]
        )


class _Service:
    """The service's side. Each call stands by itself, so a service may start anew in between."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self._url = url
        self._http = http

    async def instructions(self) -> str | None:
        """Return what the service tells agents about itself."""
        from mcp.shared.exceptions import MCPError

        async def said(client: Client) -> str | None:
            await client.list_tools()
            return client.instructions

        try:
            return await self._ask(said, mode="auto")
        except MCPError as error:
            raise CommandError(f"{self._url} does not speak MCP: {error}") from None

    async def list_tools(self, context: object, params: object) -> ListToolsResult:
        return await self._ask(lambda client: client.list_tools())

    async def call_tool(self, context: object, params: CallToolRequestParams) -> CallToolResult:
        from mcp_types import CallToolResult, TextContent

        try:
            return await self._ask(lambda client: client.call_tool(params.name, params.arguments))
        except CommandError as error:
            return CallToolResult(content=[TextContent(text=error.message)], is_error=True)

    async def _ask(self, call: Callable[[Client], Awaitable[T]], *, mode: str = "") -> T:
        import httpx2
        from mcp.client.client import Client
        from mcp.client.streamable_http import streamable_http_client
        from mcp_types.version import LATEST_MODERN_VERSION

        transport = streamable_http_client(self._url, http_client=self._http)
        try:
            async with Client(transport, mode=mode or LATEST_MODERN_VERSION, cache=None) as client:
                return await call(client)
        except ExceptionGroup as group:  # of the SDK's tasks; the first says what is wrong
            error: Exception = group
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            if isinstance(error, httpx2.HTTPError | httpx2.InvalidURL):
                raise CommandError(
                    f"{self._url} does not answer ({error or type(error).__name__}): start the "
                    "service with `kvstitch serve`, or give --url",
                    code="unreachable",
                ) from None
            raise error from None
