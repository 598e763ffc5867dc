"""Health, status and metrics."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from service import __version__
from service.gateway.http.dependencies import GatewayDep, ReadingMetrics
from service.gateway.http.status import status as status_of
from service.gateway.problems import RETRY_AFTER_S

router = APIRouter(tags=["operations"])


class NotReady(BaseModel):
    status: Literal["not ready"]
    reason: str


@router.get("/health", include_in_schema=False)
@router.get("/health/live")
async def live() -> dict[str, str]:
    """This process answers; nothing else is looked at. /health is another name for it."""
    return {"status": "ok"}


@router.get("/health/ready", responses={503: {"model": NotReady}})
async def ready(gateway: GatewayDep) -> JSONResponse:
    """200 while requests are served, else 503 with the reason. `degraded`: questions are answered,
    but nothing can be stored."""
    if (reason := gateway.not_ready()) is None:
        if (full := await asyncio.to_thread(gateway.disk.reason)) is not None:
            return JSONResponse({"status": "degraded", "reason": full})
        return JSONResponse({"status": "ready"})
    headers = {"Retry-After": str(round(RETRY_AFTER_S))}
    return JSONResponse({"status": "not ready", "reason": reason}, 503, headers)


@router.get("/status")
async def status(gateway: GatewayDep, principal: ReadingMetrics) -> dict[str, Any]:
    """What a person wants to know at a glance."""
    return {"version": __version__, **await status_of(gateway)}


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {CONTENT_TYPE_LATEST: {"schema": {"type": "string"}}}}},
)
async def metrics(gateway: GatewayDep, principal: ReadingMetrics) -> Response:
    return Response(gateway.metrics.render(), media_type=CONTENT_TYPE_LATEST)
