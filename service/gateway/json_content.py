"""JSON that was sent: counted before it is parsed, and validated.

Errors say which field is wrong and what to send instead, also where FastAPI has validated.
"""

import json
import reprlib
from collections.abc import Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from kvstitch.service.errors import BodyTooLarge, InvalidRequest, MalformedBody

M = TypeVar("M", bound=BaseModel)
_COUNTED_BYTES = 65_536  # at a time, so that other threads get their turn


def read_json(body: bytes, max_values: int, model: type[M]) -> M | None:
    """Return the content of a JSON body as a `model`, None for null."""
    if has_more_values(body, max_values):
        raise BodyTooLarge(
            f"the body holds more than {max_values} values: send it in several calls", field="body"
        )
    try:
        # Counting sees bytes, so that no other encoding than UTF-8 may be guessed.
        content = json.loads(body.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise not_utf8(error) from error
    except json.JSONDecodeError as error:
        raise MalformedBody(
            f"the body is not valid JSON at character {error.pos}: {error.msg}", field="body"
        ) from error
    except RecursionError:
        raise MalformedBody("the body is nested too deeply", field="body") from None
    return None if content is None else validated(content, model)


def has_more_values(body: bytes, limit: int) -> bool:
    """Return whether JSON text holds more than `limit` values, names not counted."""
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
    """Return `content` as a `model`."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        # As FastAPI names places: a body may have a field `query`.
        faults = [{**f, "loc": ("body", *f["loc"])} for f in error.errors(include_url=False)]
        raise from_validation(faults, model) from None


NOT_UTF8 = "is not valid UTF-8: save or send the text encoded as UTF-8"
MAX_OTHER_FIELDS = 5
MAX_SHOWN_CHARS = 80
_UNION_KINDS = ("constrained-", "list[", "function-", "literal[", "dict[")
_UNION_BRANCHES = ("str", "int", "RerankText", "NamedTool", "FunctionChoice", "OtherChoice")


def from_validation(faults: Sequence[Any], body: type[BaseModel]) -> InvalidRequest:
    """Turn pydantic's faults into one error that names the first field and the remedy."""
    first = faults[0]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        where = first["loc"][-1] if first["loc"] else 0
        at = f" at character {where}" if isinstance(where, int) else ""
        return MalformedBody(f"the body is not valid JSON{at}: {reason}", field="body")
    field = _field_path(first["loc"])
    message = f"{field}: {_remedy(first, body)}"
    others = sorted({_field_path(fault["loc"]) for fault in faults[1:]} - {field})
    if others:
        message += f" (also wrong: {', '.join(others[:MAX_OTHER_FIELDS])})"
    return InvalidRequest(message, field=field)


def not_utf8(error: UnicodeDecodeError) -> MalformedBody:
    """Return the error for a body that cannot be decoded."""
    field = "body"
    try:
        # Bad bytes become lone surrogates, which are then searched for.
        loose = json.loads(error.object.decode("utf-8", "surrogateescape"))
        field = _undecodable_field(loose) or field
    except ValueError:
        pass
    return MalformedBody(f"{field} {NOT_UTF8} (byte {error.start} of the body)", field=field)


def _undecodable_field(value: Any, path: str = "") -> str | None:
    """Return the path of the first string with a byte that could not be decoded."""
    if isinstance(value, str):
        return path if any("\udc80" <= char <= "\udcff" for char in value) else None
    items: Sequence[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(f"{path}.{key}" if path else str(key), item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    found = (_undecodable_field(item, name) for name, item in items)
    return next((name for name in found if name is not None), None)


def _field_path(loc: Sequence[int | str]) -> str:
    """Return ("body", "documents", 0, "text") as "documents[0].text"."""
    out = ""
    end = len(loc) - (loc[-1:] == ("[key]",))  # a wrong name in an object: the name is enough
    start = int(bool(loc) and loc[0] in ("body", "query", "path", "header"))
    for part in loc[start:end]:
        if isinstance(part, int):
            out += f"[{part}]"
        elif part.startswith(_UNION_KINDS) or part in _UNION_BRANCHES:
            continue  # pydantic's name for a branch of a union, which the client never wrote
        else:
            out += f".{part}" if out else part
    return out or "body"


def _remedy(fault: Any, body: type[BaseModel]) -> str:
    kind, message = fault["type"], str(fault["msg"])
    if kind == "missing":
        return "required, but it is missing"
    if kind == "extra_forbidden":
        known = ", ".join(_model_at(fault["loc"], body).model_fields)
        return f"not a known field; known are: {known}"
    if kind == "string_unicode":
        return NOT_UTF8
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:] + f", not {_shorten(fault.get('input'))}"


def _model_at(loc: Sequence[int | str], body: type[BaseModel]) -> type[BaseModel]:
    """Return the model that holds the last field of `loc`."""
    for part in loc[:-1]:
        if part in body.model_fields:
            body = _model_in(body.model_fields[str(part)].annotation) or body
    return body


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in `X | None` or `list[X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for arg in get_args(annotation) if (m := _model_in(arg))), None)


def _shorten(value: Any) -> str:
    # What is long is not written out only to be cut off.
    short = reprlib.Repr()
    short.maxlist = short.maxdict = short.maxstring = MAX_SHOWN_CHARS
    text = repr(value[: MAX_SHOWN_CHARS + 1]) if isinstance(value, str) else short.repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 3] + "..."
