"""GET /docs: the API for people to read, as one page without scripts.

What FastAPI offers here would run scripts of a third party's host on the origin of the API.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """Every operation of /openapi.json, then the schemas that they name."""
    described = request.app.openapi()
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>kvstitch API</title>",
        f"<h1>{escape(described['info']['title'])} {escape(described['info']['version'])}</h1>",
        "<p>The same for programs: <a href='openapi.json'>openapi.json</a></p>",
    ]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            parts.append(_operation(f"{method.upper()} {path}", operation))
    parts.append("<h1>Schemas</h1>")
    for name, schema in described.get("components", {}).get("schemas", {}).items():
        parts.append(f"<h2 id='{escape(name)}'>{escape(name)}</h2>{_json(schema)}")
    return HTMLResponse("\n".join(parts))


def _operation(title: str, operation: dict[str, Any]) -> str:
    text = operation.get("description") or operation.get("summary", "")
    shown = {k: operation[k] for k in ("parameters", "requestBody") if k in operation}
    return (
        f"<h2>{escape(title)}</h2><p>{escape(text)}</p>"
        f"{_json(shown) if shown else ''}"
        f"<p>Answers: {escape(', '.join(operation['responses']))}</p>"
    )


def _json(value: Any) -> str:
    text = escape(json.dumps(value, indent=2, ensure_ascii=False))
    return f"<details><summary>details</summary><pre>{text}</pre></details>"
