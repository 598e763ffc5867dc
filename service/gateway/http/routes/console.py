"""/ui: serves the files of the web console, `service/gateway/ui`.

The files hold no data. What the console shows it gets from the API, with the user's own API key.
"""

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
    # Browsers must ask each time (and get 304): a page must never run with the scripts of another
    # version.
    "Cache-Control": "no-cache",
}
# The system's table of media types may lack this one, or name one that browsers refuse for modules.
TYPES = {".js": "text/javascript; charset=utf-8"}


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
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        if (own := TYPES.get(Path(full_path).suffix)) and response.status_code == 200:
            response.headers["Content-Type"] = own
        return response
