"""/openapi.json: FastAPI's description, with errors, streams and examples added.

Errors are the same at all routes, so they are described here once and not at every route.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from service.gateway.http.openapi_examples import examples
from service.gateway.schemas.admin import ErrorOut, Problem

# Routes that need no key and cannot fail.
ROUTES_WITHOUT_ERRORS = ("/health/live",)
STREAMS = {
    "/v1/rag/generate": "events sources, token …, then done or error",
    "/v1/chat/completions": "chat.completion.chunk objects, then [DONE]",
    "/v1/completions": "text_completion objects, then [DONE]",
    "/v1/responses": "events response.created … response.completed",
}
TIMED = (*STREAMS, "/v1/search", "/v1/rerank", "/v1/embeddings")  # these take a deadline
REF = "#/components/schemas/{model}"


@dataclass(frozen=True)
class OfferedNames:
    """Names of models and methods that requests may choose."""

    models: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()


SECURITY = {"key": {"type": "http", "scheme": "bearer", "description": "kvstitch keys create"}}
METHODS = ("get", "put", "post", "patch", "delete")


class OpenApiDescription:
    """Makes the description, and makes it anew when other models or methods are offered."""

    def __init__(self, app: FastAPI, offer: Callable[[], OfferedNames]) -> None:
        """Describe `app`.

        Args:
            app: With all its routes.
            offer: Gives the names of models and methods; none while the worker is not ready.
        """
        self._app = app
        self._offer = offer
        self._made: tuple[OfferedNames, dict[str, Any]] | None = None

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
            self._made = offer, _complete(schema, offer)
        return self._made[1]


def _complete(schema: dict[str, Any], offer: OfferedNames) -> dict[str, Any]:
    components = schema.setdefault("components", {})
    models = components.setdefault("schemas", {})
    for model in (ErrorOut, Problem):
        own = model.model_json_schema(ref_template=REF)
        models.update(own.pop("$defs", {}))
        models[model.__name__] = own
    for name in ("HTTPValidationError", "ValidationError"):
        models.pop(name, None)
    if offer.methods:
        models["MethodChoice"]["properties"]["method"]["enum"] = offer.methods
    if offer.models:
        for name in ("ChatRequest", "CompletionRequest", "ResponsesRequest"):
            models[name]["properties"]["model"]["enum"] = [*offer.models, None]
    components["securitySchemes"] = SECURITY
    for path, operations in schema["paths"].items():
        for method in METHODS:
            if method in operations:
                _describe(path, method, operations[method])
    return schema


def _describe(path: str, method: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    _drop_default_422(responses)
    if path in STREAMS:
        responses["200"]["content"]["text/event-stream"] = {"schema": _events(STREAMS[path])}
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        if media.startswith("text/"):
            body["schema"] = {}  # any text is valid
    if path not in ROUTES_WITHOUT_ERRORS:
        # A key is optional, because a service without keys takes requests without one.
        operation["security"] = [{"key": []}, {}]
        for status in _statuses(path, method, operation):
            responses.setdefault(str(status), _error_response(path, status))
    _add_examples(path, method, operation)


def _statuses(path: str, method: str, operation: dict[str, Any]) -> list[int]:
    statuses = [401, 403, 429, 500, 503]
    if "requestBody" in operation:
        statuses += [400, 413, 415, 422]
    if operation.get("parameters"):
        statuses += [400, 422]
    if "{" in path or path in TIMED:
        statuses.append(404)
    if path in TIMED:
        statuses.append(504)
    if path in (*STREAMS, "/v1/rerank"):
        statuses.append(409)  # what was asked for was not measured, or not set up
    if path.startswith("/admin") and method != "get":
        statuses.append(409)
    return sorted(set(statuses))


def _error_response(path: str, status: int) -> dict[str, Any]:
    problem = not path.startswith("/v1/")
    model = "Problem" if problem else "ErrorOut"
    media = "application/problem+json" if problem else "application/json"
    fault: dict[str, Any] = {
        "description": HTTPStatus(status).phrase,
        "content": {media: {"schema": {"$ref": REF.format(model=model)}}},
    }
    if status in (429, 503):
        wait = {"description": "seconds to wait", "schema": {"type": "integer", "minimum": 1}}
        fault["headers"] = {"Retry-After": wait}
    return fault


def _events(description: str) -> dict[str, Any]:
    """Schema of one server-sent event; its data is JSON, or [DONE]."""
    text = {"type": "string"}
    return {
        "type": "object",
        "description": description,
        "properties": {"event": text, "data": text},
        "required": ["data"],
    }


def _drop_default_422(responses: dict[str, Any]) -> None:
    """Remove FastAPI's own 422, which no route responds with."""
    content = responses.get("422", {}).get("content", {}).get("application/json", {})
    if content.get("schema", {}).get("$ref", "").endswith("/HTTPValidationError"):
        del responses["422"]


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
