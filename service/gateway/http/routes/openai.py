"""OpenAI's API: the answers of /v1/rag/generate in its form, and what this service offers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from kvstitch.records.answers import Answer
from service.errors import KvstitchError, ModelNotFound
from service.gateway.answers.answer_service import AnswerGroup
from service.gateway.composition import Gateway
from service.gateway.http.answering import AnswerExchange, AnswerExchangeDep
from service.gateway.http.dependencies import GatewayDep, Generating
from service.gateway.http.json_body import JsonRoute
from service.gateway.http.openai.completions import CompletionChunks, completion
from service.gateway.http.openai.envelope import DocumentLinks, Envelope
from service.gateway.http.openai.model_presets import list_models
from service.gateway.http.openai.requests import (
    Served,
    TranslatedRequest,
    from_chat,
    from_completion,
    from_responses,
)
from service.gateway.http.openai.responses import ResponseWriter
from service.gateway.http.sse import EventFraming
from service.gateway.schemas.openai.chat import (
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
)
from service.gateway.schemas.openai.common import CommonRequest, ModelList, ModelOut
from service.gateway.schemas.openai.responses import ResponseObject, ResponsesRequest

router = APIRouter(prefix="/v1", route_class=JsonRoute)


@router.post("/chat/completions", response_model=ChatCompletion, tags=["OpenAI"])
async def chat(body: ChatRequest, exchange: AnswerExchangeDep, gateway: GatewayDep) -> Any:
    """Answer the last user message from documents that are searched for it."""
    served = _served(gateway)
    return await _completion(exchange, body, from_chat(body, served), served)


@router.post("/completions", response_model=Completion, tags=["OpenAI"])
async def completions(
    body: CompletionRequest, exchange: AnswerExchangeDep, gateway: GatewayDep
) -> Any:
    """Answer the prompt, as a question, from documents that are searched for it."""
    served = _served(gateway)
    exchange = replace(exchange, call=replace(exchange.call, operation="text_completion"))
    return await _completion(exchange, body, from_completion(body, served), served)


@router.post("/responses", response_model=ResponseObject, tags=["OpenAI"])
async def responses(
    body: ResponsesRequest, exchange: AnswerExchangeDep, gateway: GatewayDep
) -> Any:
    """Answer the last text of the user from documents that are searched for it."""
    served = _served(gateway)
    asked = from_responses(body, served)
    envelope = _envelopes(exchange, body, asked, served, chat=True)
    return await _answer(
        exchange,
        asked,
        lambda group: ResponseWriter(envelope(group), body, stream=True),
        lambda group, results: ResponseWriter(envelope(group), body, stream=False).response(
            results[0]
        ),
    )


@router.get("/models", response_model_exclude_none=True, tags=["models"])
async def models(gateway: GatewayDep, principal: Generating) -> ModelList:
    """The model that is served, alone and with each of its presets, and its LoRA adapters."""
    prompts, ready = gateway.prompts, gateway.worker.require()
    return ModelList(data=list_models(prompts.model, prompts.created, ready, principal.adapter))


@router.get("/models/{model_id:path}", response_model_exclude_none=True, tags=["models"])
async def model(model_id: str, gateway: GatewayDep, principal: Generating) -> ModelOut:
    """One of them."""
    for found in (await models(gateway, principal)).data:
        if found.id == model_id:
            return found
    raise ModelNotFound(f"there is no model {model_id!r}; GET /v1/models lists them", field="model")


@router.get("/methods", tags=["models"])
async def methods(gateway: GatewayDep, principal: Generating) -> dict[str, Any]:
    """Fusion and eviction methods with the schemas of their parameters, and the defaults."""
    ready = gateway.worker.require()
    return {
        "fusion": [asdict(info) for info in ready.fusion],
        "eviction": [asdict(info) for info in ready.eviction],
        "defaults": gateway.default_methods.describe(ready),
    }


def _served(gateway: Gateway) -> Served:
    prompts = gateway.prompts
    return Served(prompts.model, prompts.tool_form, gateway.worker.require())


async def _completion(
    exchange: AnswerExchange,
    body: ChatRequest | CompletionRequest,
    asked: TranslatedRequest,
    served: Served,
) -> Any:
    envelope = _envelopes(exchange, body, asked, served, chat=isinstance(body, ChatRequest))
    usage = bool(body.stream_options and body.stream_options.include_usage)
    return await _answer(
        exchange,
        asked,
        lambda group: CompletionChunks(
            envelope(group), choices=len(group.answers), include_usage=usage
        ),
        lambda group, results: completion(envelope(group), results),
    )


def _envelopes(
    exchange: AnswerExchange,
    body: CommonRequest,
    asked: TranslatedRequest,
    served: Served,
    *,
    chat: bool,
) -> Callable[[AnswerGroup], Envelope]:
    def envelope(group: AnswerGroup) -> Envelope:
        return Envelope(
            group.answers[0].id,
            body.model or served.model,
            chat=chat,
            citations=body.kvstitch is None or body.kvstitch.include_citations,
            links=DocumentLinks(str(exchange.request.base_url), asked.requests[0].collection),
            tool_form=served.tool_form,
            tools=asked.tools,
            notes=asked.notes,
            prompts=asked.prompts,
        )

    return envelope


async def _answer(
    exchange: AnswerExchange,
    asked: TranslatedRequest,
    framing: Callable[[AnswerGroup], EventFraming],
    whole: Callable[[AnswerGroup, Sequence[Answer]], BaseModel],
) -> Any:
    """Respond to a request; errors name its fields as the client has sent them."""
    try:
        return await exchange.answer(asked.requests, framing, whole)
    except KvstitchError as error:
        raise asked.renamed(error) from None
