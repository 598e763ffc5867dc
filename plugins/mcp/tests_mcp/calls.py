"""Calls of tools over MCP, as the one POST that a call is since revision 2026-07-28."""

from __future__ import annotations

from typing import Any

VERSION = "2026-07-28"
KEY = "io.modelcontextprotocol/"


def mcp_call(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What httpx is given to send to /mcp."""
    meta = {f"{KEY}protocolVersion": VERSION, f"{KEY}clientCapabilities": {}}
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    return {
        "json": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
        "headers": {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": "tools/call",
            "Mcp-Name": tool,
        },
    }
