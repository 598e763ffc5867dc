"""Pages for people: / leads to the console, /ui is the console, /docs shows the API.

The console's files, `service/gateway/ui`, hold no data: it gets what it shows from the API, with
the user's own API key. /docs is a page without scripts: what FastAPI offers here would run scripts
of a third party's host on the origin of the API.
"""

import hashlib
import json
from functools import cache
from html import escape
from os import PathLike, stat_result
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from starlette.datastructures import Headers
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

from kvstitch.service import __version__
from kvstitch.service.gateway.documents.parsing.file_kinds import media_type_of_suffix

router = APIRouter(include_in_schema=False)

PLACES = {"console": "/ui/", "docs": "/docs", "openapi": "/openapi.json", "health": "/health/ready"}
FILES = Path(__file__).parents[2] / "ui"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # Browsers must ask each time (and get 304): a page must never run with the scripts of another
    # version.
    "Cache-Control": "no-cache",
}
# The system's table of media types may lack this one, or name one that browsers refuse for modules.
TYPES = {".js": "text/javascript; charset=utf-8"}


@router.get("/")
async def root(accept: Annotated[str, Header()] = "") -> Response:
    """A redirect for those who take HTML, JSON for all others."""
    vary = {"Vary": "Accept"}
    if "text/html" in accept.lower():
        # Relative: a proxy may serve all of this below a path, or by another scheme.
        return RedirectResponse("ui/", 307, vary)
    return JSONResponse({"service": "kvstitch", "version": __version__, **PLACES}, headers=vary)


class Console(StaticFiles):
    """The console's files, with headers that allow no other script to run or be loaded."""

    def __init__(self) -> None:
        super().__init__(directory=FILES, html=True)

    def file_response(
        self,
        full_path: str | PathLike[str],
        stat_result: stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        if Path(full_path).name == "index.html":
            response = self._page(scope)
        else:
            response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        if (own := TYPES.get(Path(full_path).suffix)) and response.status_code == 200:
            response.headers["Content-Type"] = own
        return response

    def _page(self, scope: Scope) -> Response:
        page = console_page()
        headers = {"ETag": f'"{hashlib.sha256(page.encode()).hexdigest()}"'}
        response = HTMLResponse(page, headers=headers)
        if self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        return response


@cache
def console_page() -> str:
    """Return the console's page, whose file chooser offers what can be ingested."""
    page = (FILES / "index.html").read_text(encoding="utf-8")
    suffixes = [*media_type_of_suffix(), ".jsonl", ".ndjson"]
    return page.replace("{suffixes}", escape(",".join(suffixes)))


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
