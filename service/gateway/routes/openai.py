"""/v1/chat/completions and /v1/completions: the answers of /v1/rag/generate, as OpenAI's."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from service.gateway.dependencies import GatewayDep
from service.gateway.openai_requests import of_chat, of_completion
from service.gateway.openai_results import Chunks, Envelope, whole
from service.gateway.routes.answering import Exchange, ExchangeDep
from service.gateway.schemas import GenerateRequest
from service.gateway.schemas.openai import (
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
)
from service.gateway.stream import Answer

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post("/chat/completions", response_model=ChatCompletion)
async def chat(body: ChatRequest, exchange: ExchangeDep, gateway: GatewayDep) -> Any:
    """Answer the last user message from documents that are searched for it."""
    model = gateway.prompts.model
    return await _answer(exchange, body, of_chat(body, model, gateway.worker.require()), model)


@router.post("/completions", response_model=Completion)
async def completions(body: CompletionRequest, exchange: ExchangeDep, gateway: GatewayDep) -> Any:
    """Answer the prompt, as a question, from documents that are searched for it."""
    model = gateway.prompts.model
    return await _answer(
        exchange, body, of_completion(body, model, gateway.worker.require()), model
    )


async def _answer(
    exchange: Exchange, body: ChatRequest | CompletionRequest, asked: GenerateRequest, model: str
) -> Any:
    def envelope(answer: Answer) -> Envelope:
        return Envelope(
            answer.generate.id,
            body.model or model,
            chat=isinstance(body, ChatRequest),
            citations=body.kvstitch is None or body.kvstitch.include_citations,
        )

    usage = bool(body.stream_options and body.stream_options.include_usage)
    return await exchange.answer(
        asked,
        lambda answer: Chunks(envelope(answer), include_usage=usage),
        lambda answer, result: whole(envelope(answer), result),
    )
