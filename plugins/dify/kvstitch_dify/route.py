"""POST /retrieval, which Dify says what is like, and what it reads of errors."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request

from kvstitch.records.answers import SearchResults
from kvstitch.service.errors import NotFound
from kvstitch.service.gateway.admission import CallContext
from kvstitch.service.gateway.composition import Gateway
from kvstitch.service.gateway.http.answering import json_response, respond_unless_disconnected
from kvstitch.service.gateway.http.dependencies import CallContextDep, GatewayDep, JsonRoute, note
from kvstitch.service.plugins import GatewayPart
from kvstitch_dify import translation
from kvstitch_dify.translation import Records, Refusal, RetrievalRequest

router = APIRouter(route_class=JsonRoute)
REQUESTS: Any = {
    "by meaning": {
        "value": {
            "knowledge_id": "default",
            "query": "Which animal does Quentin Bruvik keep?",
            "retrieval_setting": {"top_k": 2, "score_threshold": 0.3},
        }
    },
    "with a condition": {
        "value": {
            "knowledge_id": "default",
            "query": "Which animal does Quentin Bruvik keep?",
            "retrieval_setting": {"top_k": 2},
            "metadata_condition": {
                "conditions": [{"name": "kind", "comparison_operator": "is", "value": "person"}]
            },
        }
    },
}
ANSWER: Any = {
    "records": [
        {
            "content": "Quentin Bruvik keeps a goat. The coat of Quentin Bruvik is purple.",
            "score": 0.7258902788162231,
            "title": "Quentin Bruvik",
            "metadata": {
                "kind": "person",
                "kvstitch_doc_id": "person-01",
                "kvstitch_start": 0,
                "kvstitch_end": 66,
            },
        }
    ]
}
WAIT = {"description": "seconds to wait", "schema": {"type": "integer", "minimum": 1}}
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {"example": ANSWER}}},
    # A wrong key is told by 403, and not by 401.
    **{
        status: {"model": Refusal, "description": HTTPStatus(status).phrase}
        for status in (400, 403, 404, 413, 415, 422, 500, 504)
    },
    **{
        status: {
            "model": Refusal,
            "description": HTTPStatus(status).phrase,
            "headers": {"Retry-After": WAIT},
        }
        for status in (429, 503)
    },
}


class DifyPart(GatewayPart):
    """What is added to a gateway."""

    routers = (router,)
    errors = {translation.PATH: translation.error_response}  # noqa: RUF012


@router.post(translation.PATH, response_model=Records, responses=ANSWERS)
async def retrieval(
    body: Annotated[RetrievalRequest, Body(openapi_examples=REQUESTS)],
    request: Request,
    call: CallContextDep,
    gateway: GatewayDep,
) -> Any:
    """Find passages, as Dify's External Knowledge API has it."""
    note(request, questions=[body.query], collection=body.knowledge_id)
    return await respond_unless_disconnected(
        _found(body, call, gateway),
        request,
        lambda found: json_response(
            Records(records=[translation.record(each, found.ranked_by) for each in found.results]),
            found.stages,
        ),
    )


async def _found(body: RetrievalRequest, call: CallContext, gateway: Gateway) -> SearchResults:
    found = await gateway.searches.search(translation.search_request(body), call)
    if not found.results:
        collections = await gateway.corpus.documents.collections(call.principal)
        if found.collection not in [one.collection for one in collections]:
            raise NotFound(
                f"knowledge_id: there is no collection {found.collection!r} with documents that "
                "this key may read",
                field="knowledge_id",
            )
    return found
