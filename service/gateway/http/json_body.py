"""Reads JSON bodies of any shape at a cost that grows with their size and with nothing else.

A short body can ask for much: every three bytes of `[[],[],…]` become an object of a hundred, and
an error of several hundred if they are in the wrong place. So the values of a body are counted
before it is parsed, lists stop at their first error, and a long body is parsed in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from service.errors import UnsupportedMediaType
from service.gateway.documents.jobs.job_records import SpooledFile
from service.gateway.json_content import parse_json, validated

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
INLINE_BYTES = 16_384  # shorter bodies are parsed at once: a change of threads takes longer


class JsonRoute(APIRoute):
    """A route whose JSON body is parsed and validated here instead of by FastAPI."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        annotation = self.body_field.field_info.annotation if self.body_field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return handle
        model = annotation

        async def handle_json(request: Request) -> Response:
            _check_media_type(request)
            return await handle(_JsonRequest(request, model))

        return handle_json


def _check_media_type(request: Request) -> None:
    """Raise UnsupportedMediaType for a body that is not said to be JSON."""
    headers = request.headers
    sent = headers.get("content-type", "").partition(";")[0].strip().lower()
    kind, _, subtype = sent.partition("/")
    if kind == "application" and (subtype == "json" or subtype.endswith("+json")):
        return
    if sent or headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise UnsupportedMediaType(
            f"the body is {sent or 'of no type'}, this route reads JSON: send Content-Type: "
            "application/json"
        )


class _JsonRequest(Request):
    """A request whose `json` is the validated model, which FastAPI takes as it is."""

    def __init__(self, request: Request, model: type[BaseModel]) -> None:
        super().__init__(request.scope, request.receive)
        self._model = model

    async def json(self) -> Any:
        body = await self.body()
        limit: int = self.app.state.gateway.settings.max_body_values
        return await in_thread_if_long(body, _parse_and_validate, limit, self._model)


async def in_thread_if_long(
    body: bytes | bytearray | SpooledFile, parse: Callable[..., T], *more: Any
) -> T:
    """Return `parse(body, *more)`, computed in a thread if the body is so long that others wait."""
    if not isinstance(body, SpooledFile) and len(body) <= INLINE_BYTES:
        return parse(body, *more)
    return await asyncio.to_thread(parse, body, *more)


def _parse_and_validate(body: bytes, max_values: int, model: type[M]) -> M | None:
    content = parse_json(body, max_values)
    return None if content is None else validated(content, model)
