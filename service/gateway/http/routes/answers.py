"""/v1/rag/generate, /v1/search, /v1/rerank and /v1/embeddings: this service's own routes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from kvstitch.records.answers import Answer, Explanation, Reranking, SearchResults
from service.gateway.http.answering import (
    AnswerExchangeDep,
    json_response,
    respond_unless_disconnected,
    server_timing,
)
from service.gateway.http.dependencies import CallContextDep, GatewayDep
from service.gateway.http.json_body import JsonRoute
from service.gateway.http.openai.field_table import EMBEDDINGS, check_fields
from service.gateway.http.request_notes import note
from service.gateway.http.sse import NamedEvents
from service.gateway.schemas.generate import GenerateRequest
from service.gateway.schemas.search import (
    EmbeddingsRequest,
    EmbeddingsResponse,
    RerankRequest,
    SearchRequest,
)
from service.gateway.schemas.writing import json_value

router = APIRouter(prefix="/v1", route_class=JsonRoute)


@router.post("/rag/generate", response_model=Answer | Explanation, tags=["answers"])
async def generate(body: GenerateRequest, exchange: AnswerExchangeDep) -> Any:
    """Answer from documents. With `stream`: events sources, token …, then done or error. With
    `explain`: nothing is generated, the reply says what an answer would take."""
    if body.explain:
        return await exchange.explain(body)
    return await exchange.answer([body], lambda _: NamedEvents(), lambda _, results: results[0])


@router.post("/search", response_model=SearchResults, tags=["retrieval"])
async def search(
    body: SearchRequest, request: Request, call: CallContextDep, gateway: GatewayDep
) -> Any:
    """Find the passages that an answer to `query` would be given, best first."""
    note(request, questions=[body.query], collection=body.collection or "default")
    return await respond_unless_disconnected(
        gateway.searches.search(body, call),
        request,
        lambda result: json_response(result, server_timing(result.stages)),
    )


@router.post("/rerank", response_model=Reranking, tags=["retrieval"])
async def rerank(
    body: RerankRequest, request: Request, call: CallContextDep, gateway: GatewayDep
) -> Any:
    """Sort texts by how well they answer `query`, with the service's reranker."""
    note(request, questions=[body.query])
    return await respond_unless_disconnected(
        gateway.rerankings.rerank(body, call),
        request,
        lambda result: JSONResponse(json_value(result, exclude_none=True)),
    )


@router.post("/embeddings", response_model=EmbeddingsResponse, tags=["retrieval"])
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
