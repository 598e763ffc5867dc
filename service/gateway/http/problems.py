"""The one place where errors become responses.

    /v1/*        {"error": {"message", "type", "code", "param"}}   what OpenAI's clients expect
    elsewhere    application/problem+json                          RFC 9457

and at routes of plugins what these say (`GatewayPart.errors`).

Status and code come from the error's class, see `kvstitch.service.errors`.
"""

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from kvstitch.service.errors import (
    InvalidToken,
    KvstitchError,
    Unroutable,
    WorkerFault,
    WorkerUnavailable,
)
from kvstitch.service.gateway.data_folder import not_usable
from kvstitch.service.gateway.json_content import from_validation

logger = logging.getLogger(__name__)
_OPENAI_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# Words that OpenAI's clients decide by, where they are not ours.
_OPENAI_CODES = {"prompt_too_long": "context_length_exceeded"}
_REALM = 'Bearer realm="kvstitch"'
RETRY_AFTER_S = 5.0  # where the error does not say
# OpenAI's clients expect 400, not 422, for an invalid request.
OPENAI_PATHS = tuple(
    f"/v1/{name}" for name in ("chat/completions", "completions", "responses", "embeddings")
)


def install(app: FastAPI) -> None:
    """Answer every error of `app` through `respond`."""

    async def on_known(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, KvstitchError)
        return respond(request, error)

    async def on_invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return respond(request, from_validation(error.errors(), _body_model(request)))

    async def on_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, KvstitchError):  # raised while a body was parsed
            return respond(request, error.__cause__)
        response = respond(request, Unroutable(error.status_code, str(error.detail)))
        if error.status_code == 405:
            response.headers["Allow"] = ", ".join(_allowed_methods(request))
        return response

    async def on_unexpected(request: Request, error: Exception) -> JSONResponse:
        return respond(request, WorkerFault("something went wrong here; the log says what"))

    async def on_system(request: Request, error: Exception) -> JSONResponse:
        if (told := not_usable(error)) is None:
            raise error
        logger.warning("%s cannot be answered: %s", request.url.path, error)
        return respond(request, told)

    app.add_exception_handler(KvstitchError, on_known)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(OSError, on_system)
    app.add_exception_handler(Exception, on_unexpected)


def cut_off() -> WorkerUnavailable:
    """Return the error for a request whose answer the ending service does not wait for."""
    return WorkerUnavailable(
        "the service is shutting down, and the answer was not finished in time: send the request "
        "again",
        retry_after_s=RETRY_AFTER_S,
    )


def respond(request: Request, error: KvstitchError) -> JSONResponse:
    """Return the response for an error, in the form that the request's path calls for."""
    headers = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = _challenge(request, error)
    if error.code == "missing_scope":
        headers["WWW-Authenticate"] = f'{_REALM}, error="insufficient_scope"'
    if error.status == 408:
        headers["Connection"] = "close"  # the rest of the body would come as slowly
    if error.status in (429, 503, 507):
        headers["Retry-After"] = str(max(1, round(error.retry_after_s or RETRY_AFTER_S)))
    if (form := request.app.state.error_forms.get(request.url.path)) is not None:
        status, body = form(error, request.headers)
        return JSONResponse(body, status, headers)
    if request.url.path.startswith("/v1/"):
        if error.status != 500:
            # Without this header OpenAI's clients retry after any 409, 429 or 5xx.
            headers["x-should-retry"] = str(error.status in (429, 503)).lower()
        theirs = request.url.path in OPENAI_PATHS
        shown = openai_error(error) if theirs else error_object(error)
        status = 400 if theirs and error.status == 422 else error.status
        return JSONResponse({"error": shown}, status, headers)
    problem = {
        "type": "about:blank",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": sendable(error.message),
        "code": error.code,
        "instance": request.url.path,
    }
    if error.field is not None:
        problem["field"] = sendable(error.field)
    media_type = "application/problem+json"
    return JSONResponse(problem, error.status, headers, media_type=media_type)


def _challenge(request: Request, error: KvstitchError) -> str:
    """Return what RFC 6750 and RFC 9728 have clients told; without a token, nothing of one."""
    tokens = request.app.state.gateway.tokens
    url = None if tokens is None else tokens.metadata_url(request)
    told = _REALM if url is None else f'{_REALM}, resource_metadata="{_quotable(url)}"'
    if not isinstance(error, InvalidToken):
        return told
    return f'{told}, error="invalid_token", error_description="{_quotable(error.message)}"'


def _quotable(text: str) -> str:
    return "".join(c for c in text if " " <= c <= "~" and c not in '"\\')


def openai_error(error: KvstitchError) -> dict[str, Any]:
    """Return OpenAI's error object with OpenAI's codes, for the routes of their API."""
    shown = error_object(error)
    return {**shown, "code": _OPENAI_CODES.get(error.code, error.code)}


def error_object(error: KvstitchError) -> dict[str, Any]:
    """Return OpenAI's error object, for responses and for streams."""
    fallback = "invalid_request_error" if error.status < 500 else "server_error"
    return {
        "message": sendable(error.message),
        "type": _OPENAI_ERROR_TYPES.get(error.status, fallback),
        "code": error.code,
        "param": None if error.field is None else sendable(error.field),
    }


def sendable(text: str) -> str:
    """Return the text with half characters escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of all routes with this path; the framework lists the first one's."""
    routes, scope = request.app.routes, request.scope
    found = [
        method
        for method in ("DELETE", "GET", "PATCH", "POST", "PUT")
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    return sorted([*found, "HEAD"]) if "GET" in found else found


def _body_model(request: Request) -> type[BaseModel]:
    """Return the model of the body that the request's route takes."""
    fields = request.scope["route"].dependant.body_params
    found = fields[0].field_info.annotation if fields else None
    return found if isinstance(found, type) and issubclass(found, BaseModel) else BaseModel
