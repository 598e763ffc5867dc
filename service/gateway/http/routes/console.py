"""/ui: the console's files, as they are in `service/gateway/ui`. They hold nobody's data: what the
console shows it asks the API for, with the key of whoever looks."""

from __future__ import annotations

from os import PathLike, stat_result
from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

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
    # Asked again each time, answered 304: a page never runs with another version's scripts.
    "Cache-Control": "no-cache",
}
# Of the system's table of types, which may lack or misname a module's.
TYPES = {".js": "text/javascript; charset=utf-8"}


class Console(StaticFiles):
    """The files of the console, with headers that let nothing else run or be loaded."""

    def __init__(self) -> None:
        super().__init__(directory=FILES, html=True)

    def file_response(
        self,
        full_path: str | PathLike[str],
        stat_result: stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        if (own := TYPES.get(Path(full_path).suffix)) and response.status_code == 200:
            response.headers["Content-Type"] = own
        return response
