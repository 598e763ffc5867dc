"""The one place where errors become responses. Knows every error, no use case.

/v1/*        {"error": {"message", "type", "code", "param"}}     as OpenAI's clients expect
elsewhere    application/problem+json (RFC 9457)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, get_args

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from service.errors import InvalidRequest, KvstitchError, WorkerFault

logger = logging.getLogger(__name__)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
RETRY_AFTER_S = 5.0  # where the error does not know better
# Paths whose clients take 400, and not 422, for a request that is wrong.
OPENAI = ("/v1/chat/completions", "/v1/completions")
NOT_UTF8 = "is not valid UTF-8: save or send the text encoded as UTF-8"


class BadBody(InvalidRequest):
    """The body cannot even be read: malformed JSON or not UTF-8."""

    code = "bad_body"
    status = 400


class BodyTooLarge(InvalidRequest):
    code = "body_too_large"
    status = 413


class Unroutable(KvstitchError):
    """No such path, method or media type: what the framework refuses."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = HTTPStatus(status).phrase.lower().replace(" ", "_")


def install(app: FastAPI) -> None:
    """Route every error of `app` through `respond`."""

    async def known(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, KvstitchError)
        return respond(request, error)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return respond(request, from_validation(error.errors(), _body_of(request)))

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if isinstance(error.__cause__, UnicodeDecodeError):
            return respond(request, not_utf8(error.__cause__))
        if isinstance(error.__cause__, RecursionError):
            return respond(request, BadBody("the body is nested too deeply", field="body"))
        response = respond(request, Unroutable(error.status_code, str(error.detail)))
        if error.status_code == 405:
            response.headers["Allow"] = ", ".join(_allowed(request))
        return response

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        return respond(request, WorkerFault("something went wrong here; the log says what"))

    app.add_exception_handler(KvstitchError, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unexpected)


def respond(request: Request, error: KvstitchError) -> JSONResponse:
    headers = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="kvstitch"'
    if error.status in (429, 503):
        headers["Retry-After"] = str(max(1, round(error.retry_after_s or RETRY_AFTER_S)))
    if request.url.path.startswith("/v1/"):
        if error.status != 500:
            # OpenAI's clients would try again after any 409, 429 or 5xx.
            headers["x-should-retry"] = str(error.status in (429, 503)).lower()
        lenient = error.status == 422 and request.url.path in OPENAI
        return JSONResponse(
            {"error": error_object(error)}, 400 if lenient else error.status, headers
        )
    problem = {
        "type": "about:blank",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": error.message,
        "code": error.code,
        "instance": request.url.path,
    }
    if error.field is not None:
        problem["field"] = error.field
    media_type = "application/problem+json"
    return JSONResponse(problem, error.status, headers, media_type=media_type)


def error_object(error: KvstitchError) -> dict[str, Any]:
    """OpenAI's error object, in responses and in the stream."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {
        "message": error.message,
        "type": _TYPES.get(error.status, kind),
        "code": error.code,
        "param": error.field,
    }


def from_validation(faults: Sequence[Any], body: type[BaseModel]) -> KvstitchError:
    """pydantic's faults as one message that names the first field and the remedy.

    `body` is the model that was validated, for the names of the fields that do exist.
    """
    first = faults[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        where = first["loc"][-1] if first["loc"] else 0
        at = f" at character {where}" if isinstance(where, int) else ""
        return BadBody(f"the body is not valid JSON{at}: {reason}", field="body")
    field = _path(first["loc"])
    message = f"{field}: {_remedy(first, body)}"
    others = sorted({_path(fault["loc"]) for fault in faults[1:]} - {field})
    if others:
        message += f" (also wrong: {', '.join(others[:5])})"
    return InvalidRequest(message, field=field)


def not_utf8(error: UnicodeDecodeError) -> BadBody:
    """Names the JSON field that holds the bad byte if the rest can be read."""
    field = "body"
    try:
        loose = json.loads(error.object.decode("utf-8", "surrogateescape"))
        field = _undecodable(loose) or field
    except ValueError:
        pass
    return BadBody(f"{field} {NOT_UTF8} (byte {error.start} of the body)", field=field)


def _undecodable(value: Any, path: str = "") -> str | None:
    """Path of the first string with a byte that could not be decoded."""
    if isinstance(value, str):
        return path if any("\udc80" <= char <= "\udcff" for char in value) else None
    items: Sequence[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(f"{path}.{key}" if path else str(key), item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    found = (_undecodable(item, name) for name, item in items)
    return next((name for name in found if name is not None), None)


def _path(loc: Sequence[int | str]) -> str:
    """("body", "documents", 0, "text") as documents[0].text."""
    out = ""
    for part in loc[1:] if loc and loc[0] in ("body", "query", "path", "header") else loc:
        if isinstance(part, int):
            out += f"[{part}]"
        elif part.startswith(("constrained-", "list[", "function-")) or part in ("str", "int"):
            continue  # a branch of a union: not something the client wrote
        else:
            out += f".{part}" if out else part
    return out or "body"


def _remedy(fault: Any, body: type[BaseModel]) -> str:
    kind, message = fault["type"], str(fault["msg"])
    if kind == "missing":
        return "required, but it is missing"
    if kind == "extra_forbidden":
        return f"not a known field; known are: {', '.join(_at(fault['loc'], body).model_fields)}"
    if kind == "string_unicode":
        return NOT_UTF8
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:] + f", not {_shown(fault.get('input'))}"


def _allowed(request: Request) -> list[str]:
    """Methods of the path, of all its routes: the framework knows those of the first."""
    routes, scope = request.app.routes, request.scope
    return [
        method
        for method in ("DELETE", "GET", "PATCH", "POST", "PUT")
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]


def _body_of(request: Request) -> type[BaseModel]:
    """The model of the body that the request's route takes."""
    fields = request.scope["route"].dependant.body_params
    found = fields[0].field_info.annotation if fields else None
    return found if isinstance(found, type) and issubclass(found, BaseModel) else BaseModel


def _at(loc: Sequence[int | str], body: type[BaseModel]) -> type[BaseModel]:
    """The model that holds the last field of `loc`."""
    for part in loc[:-1]:
        if part in body.model_fields:
            body = _model_in(body.model_fields[str(part)].annotation) or body
    return body


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model in `X | None` or `list[X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for arg in get_args(annotation) if (m := _model_in(arg))), None)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
