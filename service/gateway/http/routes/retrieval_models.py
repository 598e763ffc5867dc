"""POST /v1/rerank and /v1/embeddings: the retriever's models for texts of the client."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from service.gateway.http.answer_exchange import respond_unless_disconnected
from service.gateway.http.dependencies import CallContextDep, GatewayDep
from service.gateway.http.json_body import JsonRoute
from service.gateway.http.openai.field_rules import check_fields
from service.gateway.http.openai.field_table import EMBEDDINGS
from service.gateway.schemas.search import (
    EmbeddingsRequest,
    EmbeddingsResponse,
    RerankRequest,
    RerankResponse,
)

router = APIRouter(prefix="/v1", tags=["retrieval"], route_class=JsonRoute)


@router.post("/rerank", response_model=RerankResponse)
async def rerank(
    body: RerankRequest, request: Request, call: CallContextDep, gateway: GatewayDep
) -> Any:
    """Sort texts by how well they answer `query`, with the service's reranker."""
    return await respond_unless_disconnected(
        gateway.rerankings.rerank(body, call),
        request,
        lambda result: JSONResponse(result.model_dump(exclude_none=True)),
    )


@router.post("/embeddings", response_model=EmbeddingsResponse)
async def embeddings(
    body: EmbeddingsRequest, request: Request, call: CallContextDep, gateway: GatewayDep
) -> Any:
    """Turn texts into vectors, with the embedder that the documents are searched by."""
    check_fields(body.model_extra, EMBEDDINGS)
    return await respond_unless_disconnected(
        gateway.embeddings.embed(body, call),
        request,
        lambda content: Response(content, media_type="application/json"),
    )
