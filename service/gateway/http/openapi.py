"""/openapi.json: FastAPI's description, with errors, streams, examples and uploads added.

Errors are the same at all routes, so they are described here once and not at every route. Examples
are recorded by scripts/record_api_examples.py.
"""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from kvstitch.service.gateway.documents.parsing.file_kinds import kind_of_media_type
from kvstitch.service.gateway.schemas.admin import ErrorOut, PrecomputeRequest, Problem

# Routes that need no key and cannot fail.
ROUTES_WITHOUT_ERRORS = ("/health/live",)
STREAMS = {
    "/v1/rag/generate": "events sources, token …, then done or error",
    "/v1/chat/completions": "chat.completion.chunk objects, then [DONE]",
    "/v1/completions": "text_completion objects, then [DONE]",
    "/v1/responses": "events response.created … response.completed",
}
# These take a deadline.
TIMED = (*STREAMS, "/v1/search", "/v1/rerank", "/v1/embeddings")
REF = "#/components/schemas/{model}"
# Names that programs generated from the description have, where the classes are called otherwise.
SCHEMA_NAMES = {
    "Answer": "GenerateResponse",
    "SearchResults": "SearchResponse",
    "Reranking": "RerankResponse",
    "Job": "JobOut",
    "JobFault": "JobErrorOut",
    "DocumentWarning": "WarningOut",
    "WarnedDocument": "DocumentWarningsOut",
    "DocumentMark": "MarkOut",
    "Document": "DocumentOut",
    "StoredChunk": "ChunkOut",
    "Collection": "CollectionOut",
    "Receipt": "ReceiptOut",
}


Offer = tuple[list[str], list[str]]
"""Names of models and of methods that requests may choose."""

SECURITY = {"key": {"type": "http", "scheme": "bearer", "description": "kvstitch keys create"}}
METHODS = ("get", "put", "post", "patch", "delete")


class OpenApiDescription:
    """Makes the description of an app with all its routes, and makes it anew when other models or
    methods are offered: `offer` gives their names, none while the worker is not ready."""

    def __init__(self, app: FastAPI, offer: Callable[[], Offer]) -> None:
        self._app = app
        self._offer = offer
        self._made: tuple[Offer, dict[str, Any]] | None = None

    def __call__(self) -> dict[str, Any]:
        offer = self._offer()
        if self._made is None or self._made[0] != offer:
            schema = get_openapi(
                title=self._app.title,
                version=self._app.version,
                description="RAG answers from stitched KV caches. docs/api.md has a tour.",
                routes=self._app.routes,
                separate_input_output_schemas=False,
            )
            self._made = offer, _complete(schema, offer, self._app.state.error_forms)
        return self._made[1]


def _complete(schema: dict[str, Any], offer: Offer, own_errors: Collection[str]) -> dict[str, Any]:
    schema = _rename(schema)
    components = schema["components"]
    models = components["schemas"]
    for model in (ErrorOut, Problem, PrecomputeRequest):
        own = model.model_json_schema(ref_template=REF)
        models.update(own.pop("$defs", {}))
        models[model.__name__] = own
    for name in ("HTTPValidationError", "ValidationError"):
        models.pop(name, None)
    offered_models, offered_methods = offer
    if offered_methods:
        models["MethodChoice"]["properties"]["method"]["enum"] = offered_methods
    if offered_models:
        for name in ("ChatRequest", "CompletionRequest", "ResponsesRequest"):
            models[name]["properties"]["model"]["enum"] = [*offered_models, None]
    components["securitySchemes"] = SECURITY
    for path, operations in schema["paths"].items():
        for method in METHODS:
            if method in operations:
                _describe(path, method, operations[method], own_errors)
    return schema


def _rename(schema: dict[str, Any]) -> dict[str, Any]:
    """Give schemas their names of SCHEMA_NAMES, everywhere."""
    models = schema["components"]["schemas"]
    for name in SCHEMA_NAMES.keys() & models:
        models[SCHEMA_NAMES[name]] = {**models.pop(name), "title": SCHEMA_NAMES[name]}
    schema["components"]["schemas"] = dict(sorted(models.items()))
    start = re.escape(REF.format(model=""))
    text = re.sub(
        rf'(?<="{start})\w+(?=")',
        lambda found: SCHEMA_NAMES.get(found[0], found[0]),
        json.dumps(schema),
    )
    renamed: dict[str, Any] = json.loads(text)
    return renamed


def _describe(
    path: str, method: str, operation: dict[str, Any], own_errors: Collection[str]
) -> None:
    responses = operation["responses"]
    content = responses.get("422", {}).get("content", {}).get("application/json", {})
    if content.get("schema", {}).get("$ref", "").endswith("/HTTPValidationError"):
        del responses["422"]  # FastAPI's own, which no route responds with
    if path in STREAMS:
        responses["200"]["content"]["text/event-stream"] = {"schema": _events(STREAMS[path])}
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        if media.startswith("text/"):
            body["schema"] = {}  # any text is valid
    if path not in ROUTES_WITHOUT_ERRORS:
        # A key is optional, because a service without keys takes requests without one.
        operation["security"] = [{"key": []}, {}]
        for status in [] if path in own_errors else _statuses(path, method, operation):
            responses.setdefault(str(status), error_response(status, path))
    _add_examples(path, method, operation)


def _statuses(path: str, method: str, operation: dict[str, Any]) -> list[int]:
    statuses = [401, 403, 429, 500, 503]
    if "requestBody" in operation:
        statuses += [400, 413, 415, 422]
    if operation.get("parameters"):
        statuses += [400, 422]
    if "{" in path or path in (*TIMED, "/admin/renames"):
        statuses.append(404)
    if path in TIMED:
        statuses.append(504)
    if path in (*STREAMS, "/v1/rerank"):
        statuses.append(409)  # what was asked for was not measured, or not set up
    if path.startswith("/admin") and method != "get":
        statuses.append(409)
    return sorted(set(statuses))


def error_response(status: int, path: str = "") -> dict[str, Any]:
    """Return what is said of an error of a route; without a path, of one of our own API."""
    model, media = "Problem", "application/problem+json"
    if path.startswith("/v1/"):
        model, media = "ErrorOut", "application/json"
    fault: dict[str, Any] = {
        "description": HTTPStatus(status).phrase,
        "content": {media: {"schema": {"$ref": REF.format(model=model)}}},
    }
    if status in (429, 503):
        wait = {"description": "seconds to wait", "schema": {"type": "integer", "minimum": 1}}
        fault["headers"] = {"Retry-After": wait}
    return fault


def _events(description: str) -> dict[str, Any]:
    """Return the schema of one server-sent event; its data is JSON, or [DONE]."""
    text = {"type": "string"}
    return {
        "type": "object",
        "description": description,
        "properties": {"event": text, "data": text},
        "required": ["data"],
    }


def _add_examples(path: str, method: str, operation: dict[str, Any]) -> None:
    example = examples().get((method, path))
    if example is None:
        return
    for media, bodies in example.requests.items():
        content = operation["requestBody"]["content"][media]
        content["examples"] = {name: {"value": body} for name, body in bodies.items()}
    content = next(r for status, r in operation["responses"].items() if status.startswith("2"))
    for media, body in example.response.items():
        content["content"][media]["example"] = body


@dataclass(frozen=True)
class Example:
    """Bodies of one route. requests: media type → name → body; response: media type → body."""

    requests: dict[str, dict[str, Any]]
    response: dict[str, Any]


@cache
def examples() -> dict[tuple[str, str], Example]:
    """Return the routes' examples by (method in lower case, path)."""
    text = (
        files("kvstitch.service.gateway.http")
        .joinpath("openapi_examples.json")
        .read_text(encoding="utf-8")
    )
    return {_key(route): Example(**recorded) for route, recorded in json.loads(text).items()}


def _key(route: str) -> tuple[str, str]:
    method, _, path = route.partition(" ")
    return method.lower(), path


_FILE: Final[dict[str, Any]] = {"schema": {"type": "string", "format": "binary"}}
PRECOMPUTE: Final[dict[str, Any]] = {
    "parameters": [
        {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}
        for name in ("collection", "readers", "writers", "doc_id", "title")
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": REF.format(model="PrecomputeRequest")}},
            "application/x-ndjson": {"schema": {"type": "string"}},
            "text/plain": {"schema": {"type": "string"}},
            **{media: _FILE for media in kind_of_media_type()},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "collection": {"type": "string"},
                        "metadata": {"type": "string"},
                        "readers": {"type": "string"},
                        "writers": {"type": "string"},
                        "file": {"type": "string", "format": "binary"},
                    },
                }
            },
        },
    },
}
