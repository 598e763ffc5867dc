"""POST /v1/rag/generate: an answer, streamed or whole."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from service.gateway.access import Principal
from service.gateway.answer import Answerer
from service.gateway.dependencies import AnswererDep, Arrived, Generating, PingSeconds
from service.gateway.schemas import GenerateRequest, GenerateResponse
from service.gateway.sse import EventStream, unless_disconnected

router = APIRouter(prefix="/v1/rag", tags=["answers"])


@router.post("/generate", response_model=GenerateResponse)
async def generate(
    body: GenerateRequest,
    request: Request,
    principal: Generating,
    answerer: AnswererDep,
    arrived: Arrived,
    ping_s: PingSeconds,
) -> Any:
    """Answer from documents. With `stream`: events sources, token …, then done or error."""
    if body.stream:
        return EventStream(await answerer.open(body, arrived, principal), ping_s=ping_s)
    answer = await unless_disconnected(_whole(answerer, body, arrived, principal), request.receive)
    return Response(status_code=499) if answer is None else answer


async def _whole(
    answerer: Answerer, body: GenerateRequest, arrived: float, principal: Principal
) -> GenerateResponse:
    answer = await answerer.open(body, arrived, principal)
    return await answer.collect()
