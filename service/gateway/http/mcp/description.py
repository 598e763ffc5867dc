"""/mcp in OpenAPI: JSON-RPC 2.0 as the Model Context Protocol has it. What tools take and give is
told by the protocol itself (`tools/list`)."""

from __future__ import annotations

from typing import Any, Final

_ID: Final = {"type": ["string", "integer"]}
_HEADERS: Final = {
    "MCP-Protocol-Version": "revision of the protocol, in every message but `initialize`",
    "Mcp-Method": "the message's method, since revision 2026-07-28",
    "Mcp-Name": "the tool that is called, since revision 2026-07-28",
    "Mcp-Session-Id": "of the session that `initialize` has begun, before revision 2026-07-28",
}


def _headers(*names: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"},
         "description": _HEADERS[name]}
        for name in names
    ]  # fmt: skip


def _answer(*, failed: bool = False) -> dict[str, Any]:
    given = {} if failed else {"result": {"type": "object"}}
    error = {
        "type": "object",
        "required": ["code", "message"],
        "properties": {"code": {"type": "integer"}, "message": {"type": "string"}, "data": {}},
    }
    return {
        "type": "object",
        "required": ["jsonrpc", *(["error"] if failed else [])],
        "properties": {
            "jsonrpc": {"const": "2.0"},
            "id": {"type": ["string", "integer", "null"]},
            "error": error,
            **given,
        },
    }


def _failure(description: str) -> dict[str, Any]:
    answer = {"schema": _answer(failed=True)}
    return {"description": description, "content": {"application/json": answer}}


MESSAGE: Final[dict[str, Any]] = {
    "parameters": _headers(*_HEADERS),
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["jsonrpc", "method"],
                    "properties": {
                        "jsonrpc": {"const": "2.0"},
                        "id": _ID,
                        "method": {"type": "string"},
                        "params": {"type": "object"},
                    },
                }
            }
        },
    },
}
ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The answer, as JSON or as the last of the events",
        "content": {
            "application/json": {"schema": _answer()},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    },
    202: {"description": "A notification was taken"},
    400: _failure("No message of the protocol, or headers that say otherwise"),
    404: _failure("No such session, or no such method"),
    406: _failure("Accept does not name application/json and text/event-stream"),
}
END: Final[dict[str, Any]] = {"parameters": _headers("MCP-Protocol-Version", "Mcp-Session-Id")}
ENDED: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The session has ended"},
    400: _failure("No session is named"),
    404: _failure("No such session"),
    405: _failure("There is no session to end: there are none since revision 2026-07-28"),
}
