"""POST /v1/rag/generate: an answer, streamed or whole; or an explanation of what it would take."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from service.gateway.http.answer_exchange import AnswerExchangeDep
from service.gateway.http.json_body import JsonRoute
from service.gateway.http.sse import NamedEvents
from service.gateway.schemas.answer import Explanation, GenerateResponse
from service.gateway.schemas.generate import GenerateRequest

router = APIRouter(prefix="/v1/rag", tags=["answers"], route_class=JsonRoute)


@router.post("/generate", response_model=GenerateResponse | Explanation)
async def generate(body: GenerateRequest, exchange: AnswerExchangeDep) -> Any:
    """Answer from documents. With `stream`: events sources, token …, then done or error. With
    `explain`: nothing is generated, the reply says what an answer would take."""
    if body.explain:
        return await exchange.explain(body)
    return await exchange.answer(body, lambda _: NamedEvents(), lambda _, result: result)
