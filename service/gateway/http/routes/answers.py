"""Answers in this service's own form and in OpenAI's; search, rerank, embeddings; models."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from kvstitch.records.answers import Answer, Explanation, Reranking, SearchResults
from kvstitch.service.errors import KvstitchError, ModelNotFound
from kvstitch.service.gateway.admission import CallContext
from kvstitch.service.gateway.answers.answer_service import AnswerGroup
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.http.answering import (
    AnswerWriter,
    NamedEvents,
    answer,
    json_value,
    respond_unless_disconnected,
)
from kvstitch.service.gateway.http.dependencies import (
    CallContextDep,
    GatewayDep,
    Generating,
    JsonRoute,
    note,
)
from kvstitch.service.gateway.http.openai.completions import CompletionWriter
from kvstitch.service.gateway.http.openai.envelope import Envelope, warned
from kvstitch.service.gateway.http.openai.field_table import EMBEDDINGS, Notes
from kvstitch.service.gateway.http.openai.requests import (
    Served,
    TranslatedRequest,
    from_chat,
    from_completion,
    from_responses,
)
from kvstitch.service.gateway.http.openai.responses import ResponseWriter
from kvstitch.service.gateway.prompts.conversation import question_of
from kvstitch.service.gateway.schemas.generate import GenerateRequest
from kvstitch.service.gateway.schemas.openai import ChatRequest, CompletionRequest, ResponsesRequest
from kvstitch.service.gateway.schemas.openai_answers import (
    ChatCompletion,
    Completion,
    ModelList,
    ModelOut,
    ResponseObject,
)
from kvstitch.service.gateway.schemas.search import (
    EmbeddingsRequest,
    EmbeddingsResponse,
    RerankRequest,
    SearchRequest,
)
from kvstitch.service.messages.replies import Ready
from kvstitch.service.shared.parameters import check

router = APIRouter(prefix="/v1", route_class=JsonRoute)


@router.post("/rag/generate", response_model=Answer | Explanation, tags=["answers"])
async def generate(
    body: GenerateRequest, request: Request, call: CallContextDep, gateway: GatewayDep
) -> Any:
    """Answer from documents. With `stream`: events sources, token …, then done or error. With
    `explain`: nothing is generated, the reply says what an answer would take."""
    if body.explain:
        asked = question_of(body.turns)
        note(request, questions=[asked], collection=body.collection or "default")
        return await respond_unless_disconnected(gateway.answers.explain(body, call), request)
    return await answer(request, gateway, call, [body], lambda _: NamedEvents())


@router.post("/search", response_model=SearchResults, tags=["retrieval"])
async def search(
    body: SearchRequest, request: Request, call: CallContextDep, gateway: GatewayDep
) -> Any:
    """Find the passages that an answer to `query` would be given, best first."""
    note(request, questions=[body.query], collection=body.collection or "default")
    return await respond_unless_disconnected(gateway.searches.search(body, call), request)


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
    notes = Notes(gateway.settings.strict_fields)
    notes.check(body.model_extra, EMBEDDINGS)
    response = await respond_unless_disconnected(
        gateway.embeddings.embed(body, call),
        request,
        lambda content: Response(content, media_type="application/json"),
    )
    return warned(response, notes)


@router.post("/chat/completions", response_model=ChatCompletion, tags=["OpenAI"])
async def chat(
    body: ChatRequest, request: Request, call: CallContextDep, gateway: GatewayDep
) -> Any:
    """Answer the last user message from documents that are searched for it."""
    return await answer_asked(request, gateway, call, from_chat(body, served_model(gateway)))


@router.post("/completions", response_model=Completion, tags=["OpenAI"])
async def completions(
    body: CompletionRequest, request: Request, call: CallContextDep, gateway: GatewayDep
) -> Any:
    """Answer the prompt, as a question, from documents that are searched for it."""
    call = replace(call, operation="text_completion")
    return await answer_asked(request, gateway, call, from_completion(body, served_model(gateway)))


@router.post("/responses", response_model=ResponseObject, tags=["OpenAI"])
async def responses(
    body: ResponsesRequest, request: Request, call: CallContextDep, gateway: GatewayDep
) -> Any:
    """Answer the last text of the user from documents that are searched for it."""
    return await answer_asked(request, gateway, call, from_responses(body, served_model(gateway)))


def served_model(gateway: Gateway) -> Served:
    """Return what requests are translated for. Raises WorkerUnavailable."""
    prompts = gateway.prompts
    ready, strict = gateway.worker.require(), gateway.settings.strict_fields
    return Served(prompts.model, prompts.tool_form, ready, strict)


def _of_openai(envelope: Envelope, group: AnswerGroup) -> AnswerWriter:
    body = envelope.asked.body
    if isinstance(body, ResponsesRequest):
        return ResponseWriter(envelope, body)
    return CompletionWriter(envelope)


async def answer_asked(
    request: Request,
    gateway: Gateway,
    call: CallContext,
    asked: TranslatedRequest,
    written: Callable[[Envelope, AnswerGroup], AnswerWriter] = _of_openai,
) -> Response:
    """Respond in a client's form; errors name the request's fields as the client has sent them."""

    def writer(group: AnswerGroup) -> AnswerWriter:
        return written(Envelope(group.answers[0].id, asked, str(request.base_url)), group)

    try:
        return warned(await answer(request, gateway, call, asked.requests, writer), asked.notes)
    except KvstitchError as error:
        raise asked.renamed(error) from None


@router.get("/models", response_model_exclude_none=True, tags=["models"])
async def models(gateway: GatewayDep, principal: Generating) -> ModelList:
    """The served model, alone and as NAME:exact, NAME:balanced and NAME:fastest; its adapters."""
    return ModelList(data=list_models(gateway, gateway.worker.require(), principal.adapter))


@router.get("/models/{model_id:path}", response_model_exclude_none=True, tags=["models"])
async def model(model_id: str, gateway: GatewayDep, principal: Generating) -> ModelOut:
    """One of them, or the model with any of its methods: `NAME:METHOD`."""
    ready = gateway.worker.require()
    for found in list_models(gateway, ready, principal.adapter, every=True):
        if found.id == model_id:
            return found
    raise ModelNotFound(f"there is no model {model_id!r}; GET /v1/models lists them", field="model")


def list_models(
    gateway: Gateway, ready: Ready, bound: str = "", *, every: bool = False
) -> list[ModelOut]:
    """Return the served model, its presets, the adapters.

    `bound` is the only adapter that the sender may use, "": all. `every` fusion method that can be
    used has a preset, too.
    """
    prompts = gateway.prompts
    presets = gateway.default_methods.named(ready)
    for info in ready.fusion if every else ():
        if not info.unavailable:
            fusion = {"method": info.name, **check(info.parameters, {}, where="fusion")}
            presets.setdefault(info.name, fusion)

    def described(name: str, **more: Any) -> ModelOut:
        return ModelOut(id=name, created=prompts.created, **more)

    return [
        described(prompts.model, details=asdict(ready.model)),
        *(described(f"{prompts.model}:{name}", fusion=of) for name, of in presets.items()),
        *(
            described(each.name, parent=prompts.model, details=asdict(each))
            for each in ready.adapters
            if bound in ("", each.name)
        ),
    ]


@router.get("/methods", tags=["models"])
async def methods(gateway: GatewayDep, principal: Generating) -> dict[str, Any]:
    """Fusion and eviction methods with the schemas of their parameters, what exact, balanced and
    fastest stand for, and the defaults."""
    ready = gateway.worker.require()
    return {
        "names": gateway.default_methods.named(ready),
        "fusion": [asdict(info) for info in ready.fusion],
        "eviction": [asdict(info) for info in ready.eviction],
        "defaults": gateway.default_methods.describe(ready),
    }
