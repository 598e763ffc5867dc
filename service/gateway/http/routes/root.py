"""GET /: leads browsers to the console, and tells other clients where things are."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Response
from fastapi.responses import JSONResponse, RedirectResponse

from service import __version__

router = APIRouter(include_in_schema=False)

PLACES = {
    "console": "/ui/",
    "docs": "/docs",
    "openapi": "/openapi.json",
    "health": "/health/ready",
}


@router.get("/")
async def root(accept: Annotated[str, Header()] = "") -> Response:
    """A redirect for those who take HTML, JSON for all others."""
    vary = {"Vary": "Accept"}
    if "text/html" in accept.lower():
        # Relative: a proxy may serve all of this below a path, or by another scheme.
        return RedirectResponse("ui/", 307, vary)
    return JSONResponse({"service": "kvstitch", "version": __version__, **PLACES}, headers=vary)
