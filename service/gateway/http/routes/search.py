"""POST /v1/search: passages without an answer."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from service.gateway.http.answer_exchange import (
    json_response,
    respond_unless_disconnected,
    server_timing,
)
from service.gateway.http.dependencies import CallContextDep, GatewayDep
from service.gateway.http.json_body import JsonRoute
from service.gateway.schemas.search import SearchRequest, SearchResponse

router = APIRouter(prefix="/v1", tags=["retrieval"], route_class=JsonRoute)


@router.post("/search", response_model=SearchResponse)
async def search(
    body: SearchRequest, request: Request, call: CallContextDep, gateway: GatewayDep
) -> Any:
    """Find the passages that an answer to `query` would be given, best first."""
    return await respond_unless_disconnected(
        gateway.searches.search(body, call),
        request,
        lambda result: json_response(result, server_timing(result.stages)),
    )
