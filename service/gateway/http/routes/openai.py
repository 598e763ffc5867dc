"""/v1/chat/completions and /v1/completions: the answers of /v1/rag/generate in OpenAI's form."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter

from service.errors import KvstitchError
from service.gateway.answers.answer_stream import AnswerStream
from service.gateway.http.answer_exchange import AnswerExchange, AnswerExchangeDep
from service.gateway.http.dependencies import GatewayDep
from service.gateway.http.json_body import JsonRoute
from service.gateway.http.openai.request_translation import from_chat, from_completion
from service.gateway.http.openai.response_translation import CompletionChunks, Envelope, completion
from service.gateway.schemas import GenerateRequest
from service.gateway.schemas.openai import (
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    Extension,
)

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=JsonRoute)


@router.post("/chat/completions", response_model=ChatCompletion)
async def chat(body: ChatRequest, exchange: AnswerExchangeDep, gateway: GatewayDep) -> Any:
    """Answer the last user message from documents that are searched for it."""
    model = gateway.prompts.model
    return await _answer(exchange, body, from_chat(body, model, gateway.worker.require()), model)


@router.post("/completions", response_model=Completion)
async def completions(
    body: CompletionRequest, exchange: AnswerExchangeDep, gateway: GatewayDep
) -> Any:
    """Answer the prompt, as a question, from documents that are searched for it."""
    model = gateway.prompts.model
    return await _answer(
        exchange, body, from_completion(body, model, gateway.worker.require()), model
    )


async def _answer(
    exchange: AnswerExchange,
    body: ChatRequest | CompletionRequest,
    request: GenerateRequest,
    model: str,
) -> Any:
    def envelope(answer: AnswerStream) -> Envelope:
        return Envelope(
            answer.id,
            body.model or model,
            chat=isinstance(body, ChatRequest),
            citations=body.kvstitch is None or body.kvstitch.include_citations,
        )

    question_field = "messages" if isinstance(body, ChatRequest) else "prompt"
    usage = bool(body.stream_options and body.stream_options.include_usage)
    try:
        return await exchange.answer(
            request,
            lambda answer: CompletionChunks(envelope(answer), include_usage=usage),
            lambda answer, result: completion(envelope(answer), result),
        )
    except KvstitchError as error:
        error.field = _as_sent(error.field, question_field)
        raise


def _as_sent(field: str | None, question_field: str) -> str | None:
    """A field of GenerateRequest under the name that it has in the client's request."""
    if field == "question":
        return question_field
    root = re.split(r"[.\[]", field or "")[0]
    return f"kvstitch.{field}" if root in Extension.model_fields else field
