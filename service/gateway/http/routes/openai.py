"""/v1/chat/completions and /v1/completions: the answers of /v1/rag/generate in OpenAI's form."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from service.errors import KvstitchError
from service.gateway.answers.answer_group import AnswerGroup
from service.gateway.http.answer_exchange import AnswerExchange, AnswerExchangeDep
from service.gateway.http.dependencies import GatewayDep
from service.gateway.http.json_body import JsonRoute
from service.gateway.http.openai.annotations import DocumentLinks
from service.gateway.http.openai.completion_chunks import CompletionChunks
from service.gateway.http.openai.envelope import Envelope
from service.gateway.http.openai.request_translation import (
    Served,
    TranslatedRequest,
    from_chat,
    from_completion,
    served_by,
)
from service.gateway.http.openai.response_translation import completion
from service.gateway.schemas.openai.chat import (
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
)

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=JsonRoute)


@router.post("/chat/completions", response_model=ChatCompletion)
async def chat(body: ChatRequest, exchange: AnswerExchangeDep, gateway: GatewayDep) -> Any:
    """Answer the last user message from documents that are searched for it."""
    served = served_by(gateway.prompts, gateway.worker.require())
    return await _answer(exchange, body, from_chat(body, served), served)


@router.post("/completions", response_model=Completion)
async def completions(
    body: CompletionRequest, exchange: AnswerExchangeDep, gateway: GatewayDep
) -> Any:
    """Answer the prompt, as a question, from documents that are searched for it."""
    served = served_by(gateway.prompts, gateway.worker.require())
    return await _answer(exchange, body, from_completion(body, served), served)


async def _answer(
    exchange: AnswerExchange,
    body: ChatRequest | CompletionRequest,
    asked: TranslatedRequest,
    served: Served,
) -> Any:
    def envelope(group: AnswerGroup) -> Envelope:
        return Envelope(
            group.answers[0].id,
            body.model or served.model,
            chat=isinstance(body, ChatRequest),
            citations=body.kvstitch is None or body.kvstitch.include_citations,
            links=DocumentLinks(str(exchange.request.base_url), asked.requests[0].collection),
            tool_form=served.tool_form,
            tools=asked.tools,
            notes=asked.notes,
            prompts=asked.prompts,
        )

    usage = bool(body.stream_options and body.stream_options.include_usage)
    try:
        return await exchange.answers_to(
            asked.requests,
            lambda group: CompletionChunks(
                envelope(group), choices=len(group.answers), include_usage=usage
            ),
            lambda group, results: completion(envelope(group), results),
        )
    except KvstitchError as error:
        raise asked.renamed(error) from None
