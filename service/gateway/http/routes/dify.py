"""/retrieval: the documents as external knowledge of Dify, which says what the route is like."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from kvstitch.records.answers import SearchResults
from service.errors import NotFound
from service.gateway.admission import CallContext
from service.gateway.composition import Gateway
from service.gateway.http import dify
from service.gateway.http.answering import (
    json_response,
    respond_unless_disconnected,
    server_timing,
)
from service.gateway.http.audit_trail import note, note_questions
from service.gateway.http.dependencies import CallContextDep, GatewayDep
from service.gateway.http.json_body import JsonRoute
from service.gateway.schemas.dify import Records, RetrievalRequest

router = APIRouter(route_class=JsonRoute)


@router.post(dify.PATH, response_model=Records)
async def retrieval(
    body: RetrievalRequest, request: Request, call: CallContextDep, gateway: GatewayDep
) -> Any:
    """Find passages, as Dify's External Knowledge API has it."""
    note_questions(request, [body.query], gateway.settings.audit_questions)
    note(request, collection=body.knowledge_id)
    return await respond_unless_disconnected(
        _found(body, call, gateway),
        request,
        lambda found: json_response(
            Records(records=[dify.record(each, found.ranked_by) for each in found.results]),
            server_timing(found.stages),
        ),
    )


async def _found(body: RetrievalRequest, call: CallContext, gateway: Gateway) -> SearchResults:
    found = await gateway.searches.search(dify.search_request(body), call)
    if not found.results:
        collections = await gateway.corpus.documents.collections(call.principal)
        if found.collection not in dict(collections):
            raise NotFound(
                f"knowledge_id: there is no collection {found.collection!r} with documents that "
                "this key may read",
                field="knowledge_id",
            )
    return found
