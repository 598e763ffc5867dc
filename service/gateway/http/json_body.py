"""Reads JSON bodies of any shape at a cost that grows with their size and with nothing else.

A short body can ask for much: every three bytes of `[[],[],…]` become an object of a hundred, and
an error of several hundred if they are in the wrong place. So the values of a body are counted
before it is parsed, lists stop at their first error, and a long body is parsed in a thread.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from service.errors import BodyTooLarge, MalformedBody
from service.gateway.body_errors import from_validation, not_utf8
from service.gateway.corpus.job_records import SpooledFile

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
INLINE_BYTES = 16_384  # shorter bodies are parsed at once: a change of threads takes longer
_COUNTED_BYTES = 65_536  # at a time, so that other threads get their turn


class JsonRoute(APIRoute):
    """A route whose JSON body is parsed and validated here instead of by FastAPI."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        annotation = self.body_field.field_info.annotation if self.body_field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return handle
        model = annotation

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request, model))

        return handle_json


class _JsonRequest(Request):
    """A request whose `json` is the validated model, which FastAPI takes as it is."""

    def __init__(self, request: Request, model: type[BaseModel]) -> None:
        super().__init__(request.scope, request.receive)
        self._model = model

    async def json(self) -> Any:
        body = await self.body()
        limit: int = self.app.state.services.settings.max_body_values
        return await in_thread_if_long(body, _parse_and_validate, limit, self._model)


async def in_thread_if_long(
    body: bytes | bytearray | SpooledFile, parse: Callable[..., T], *more: Any
) -> T:
    """`parse(body, *more)`, in a thread if the body is so long that the event loop would wait."""
    if not isinstance(body, SpooledFile) and len(body) <= INLINE_BYTES:
        return parse(body, *more)
    return await asyncio.to_thread(parse, body, *more)


def _parse_and_validate(body: bytes, max_values: int, model: type[M]) -> M | None:
    content = parse_json(body, max_values)
    return None if content is None else validated(content, model)


def parse_json(body: bytes, max_values: int) -> Any:
    """The content of a JSON body.

    Raises:
        BodyTooLarge: It holds more values than `max_values`.
        MalformedBody: It is not JSON.
    """
    if has_more_values(body, max_values):
        raise BodyTooLarge(
            f"the body holds more than {max_values} values: send it in several calls", field="body"
        )
    try:
        # Counting sees bytes, so that no other encoding than UTF-8 may be guessed.
        return json.loads(body.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise not_utf8(error) from error
    except json.JSONDecodeError as error:
        raise MalformedBody(
            f"the body is not valid JSON at character {error.pos}: {error.msg}", field="body"
        ) from error
    except RecursionError:
        raise MalformedBody("the body is nested too deeply", field="body") from None


def has_more_values(body: bytes, limit: int) -> bool:
    """Whether JSON text holds more than `limit` values, names not counted.

    Every value but the first follows a comma or opens a list or an object. Inside of strings these
    characters count for nothing.
    """
    found = 1
    in_string = False
    start = 0
    while start < len(body):
        end = start + _COUNTED_BYTES
        part = body[start:end]
        # An escaped character stays with its backslash.
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            part = body[start : end + 1]
        start += len(part)
        if b"\\" in part:
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        pieces = part.split(b'"')
        outside = b"".join(pieces[int(in_string) :: 2])
        in_string ^= len(pieces) % 2 == 0
        found += sum(map(outside.count, (b",", b"[", b"{")))
        if found > limit:
            return True
    return False


def validated(content: Any, model: type[M]) -> M:
    """`content` as a `model`.

    Raises:
        InvalidRequest: It does not fit; the error names the field and the remedy.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        # As FastAPI names places: a body may have a field `query`.
        faults = [{**f, "loc": ("body", *f["loc"])} for f in error.errors(include_url=False)]
        raise from_validation(faults, model) from None
