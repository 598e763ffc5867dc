"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from kvstitch.service.errors import KvstitchError
from kvstitch.service.gateway.http.answering import respond_unless_disconnected
from kvstitch.service.gateway.http.dependencies import CallContextDep, GatewayDep, JsonRoute
from kvstitch.service.gateway.http.routes.answers import answer_asked, served_model
from kvstitch.service.plugins import GatewayPart
from kvstitch_messages.schemas import MessagesRequest
from kvstitch_messages.translation import error_response, from_messages
from kvstitch_messages.writer import MessageWriter

MESSAGES: Final = "/v1/messages"
COUNT: Final = "/v1/messages/count_tokens"
VERSION: Final = "2023-06-01"
router = APIRouter(route_class=JsonRoute, include_in_schema=False)


class MessagesPart(GatewayPart):
    """What is added to a gateway."""

    routers = (router,)
    errors = {MESSAGES: error_response, COUNT: error_response}  # noqa: RUF012


@router.post(MESSAGES)
async def messages(
    body: MessagesRequest, request: Request, call: CallContextDep, gateway: GatewayDep
) -> Any:
    """Answer the last text of the user from documents."""
    asked = from_messages(body, served_model(gateway))
    if request.headers.get("anthropic-version", VERSION) != VERSION:
        asked.notes.append(f"the header anthropic-version has no effect: this is {VERSION}")
    return await answer_asked(request, gateway, call, asked, MessageWriter)


@router.post(COUNT)
async def count_tokens(
    body: MessagesRequest, request: Request, call: CallContextDep, gateway: GatewayDep
) -> Any:
    """Say how many tokens the prompt would have, with the passages that are found now."""
    asked = from_messages(body, served_model(gateway))
    try:
        return await respond_unless_disconnected(
            gateway.answers.explain(asked.requests[0], call),
            request,
            lambda found: JSONResponse({"input_tokens": found.prompt_tokens}),
        )
    except KvstitchError as error:
        raise asked.renamed(error) from None
