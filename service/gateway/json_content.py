"""JSON that was sent: counted before it is parsed, validated with errors that name fields."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from service.errors import BodyTooLarge, MalformedBody
from service.gateway.body_errors import from_validation, not_utf8

M = TypeVar("M", bound=BaseModel)
_COUNTED_BYTES = 65_536  # at a time, so that other threads get their turn


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
