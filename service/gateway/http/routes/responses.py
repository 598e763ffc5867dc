"""/v1/responses: the answers of /v1/rag/generate as the Responses API writes them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from service.errors import KvstitchError
from service.gateway.answers.answer_group import AnswerGroup
from service.gateway.http.answer_exchange import AnswerExchangeDep
from service.gateway.http.dependencies import GatewayDep
from service.gateway.http.json_body import JsonRoute
from service.gateway.http.openai.envelope import DocumentLinks, Envelope
from service.gateway.http.openai.requests import from_responses, served_by
from service.gateway.http.openai.responses import ResponseWriter
from service.gateway.schemas.openai.responses import ResponseObject, ResponsesRequest

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=JsonRoute)


@router.post("/responses", response_model=ResponseObject)
async def responses(
    body: ResponsesRequest, exchange: AnswerExchangeDep, gateway: GatewayDep
) -> Any:
    """Answer the last text of the user from documents that are searched for it."""
    served = served_by(gateway.prompts, gateway.worker.require())
    asked = from_responses(body, served)

    def writer(group: AnswerGroup, *, stream: bool) -> ResponseWriter:
        envelope = Envelope(
            group.answers[0].id,
            body.model or served.model,
            chat=True,
            citations=body.kvstitch is None or body.kvstitch.include_citations,
            links=DocumentLinks(str(exchange.request.base_url), asked.requests[0].collection),
            tool_form=served.tool_form,
            tools=asked.tools,
            notes=asked.notes,
        )
        return ResponseWriter(envelope, body, stream=stream)

    try:
        return await exchange.answers_to(
            asked.requests,
            lambda group: writer(group, stream=True),
            lambda group, results: writer(group, stream=False).response(results[0]),
        )
    except KvstitchError as error:
        raise asked.renamed(error) from None
