"""Kinds of fields that several requests share."""

import json
import unicodedata
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

STRICT = ConfigDict(extra="forbid", strict=True)
MAX_UNKNOWN_FIELDS = 5  # that an error names; each costs several hundred bytes
_TOLD = ("title", "description", "default", "examples")
MAX_STOPS = 16
MAX_STOP_CHARS = 256


def encodable(value: Any) -> Any:
    """Refuse half a surrogate pair (a lone \\ud800), which JSON can spell but which is not text."""
    try:
        (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair: send valid Unicode") from None
    return value


class SentModel(BaseModel):
    """An object that clients send: an optional field that is null counts as left out. The docstring
    is not inherited."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        """Leave out nulls, and of a strict model's unknown fields those no error would name."""
        if not isinstance(value, dict):
            return value
        known = {of.alias or name: of.is_required() for name, of in cls.model_fields.items()}
        strict = cls.model_config.get("extra") == "forbid"
        dropped = {n for n, sent in value.items() if sent is None and not known.get(n, strict)}
        if strict and len(value) > MAX_UNKNOWN_FIELDS:
            dropped.update([name for name in value if name not in known][MAX_UNKNOWN_FIELDS:])
        return {k: v for k, v in value.items() if k not in dropped} if dropped else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        out = handler(schema)
        found = handler.resolve_ref_schema(out)
        for name, of in cls.model_fields.items():
            shown = found.get("properties", {}).get(of.alias or name)
            if shown is None or of.is_required() or of.default is None:
                continue  # what is None by default is null in its own schema, or hides it
            if {"type": "null"} not in shown.get("anyOf", ()):
                told = {key: shown.pop(key) for key in _TOLD if key in shown}
                found["properties"][of.alias or name] = {
                    "anyOf": [*shown.pop("anyOf", [shown]), {"type": "null"}],
                    **told,
                }
        return out


class StrictModel(SentModel):
    """Refuses unknown fields, and values of another type."""

    model_config = STRICT


class LenientModel(SentModel):
    """Keeps other fields, so that `http.openai.field_table` can say what becomes of each."""

    model_config = ConfigDict(extra="allow", strict=True)


def _as_list(value: Any) -> Any:
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


Unicode = Annotated[str, AfterValidator(encodable)]
StopString = Annotated[
    str, Field(min_length=1, max_length=MAX_STOP_CHARS), AfterValidator(encodable)
]


def _one_line(value: str) -> str:
    """Refuse a name that would break lines of logs and headers."""
    if "\r" in value or "\n" in value:
        raise ValueError("holds a line break: name the document on one line")
    return value


DocId = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(encodable)]


def composed(name: str) -> str:
    """Return a name in the form in which people type it (NFC): files of macOS come in another."""
    return unicodedata.normalize("NFC", name)


# Documents that are stored already may have any name.
NewDocId = Annotated[DocId, AfterValidator(_one_line), AfterValidator(composed)]
# Names of groups are checked where they are put together (retriever/scope.py).
Readers = Annotated[list[Annotated[Unicode, AfterValidator(composed)]], Field(max_length=64)]
Title = Annotated[str, Field(max_length=2048), AfterValidator(encodable)]
_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
Stops = Annotated[
    list[StopString],
    Field(fail_fast=True),
    Field(max_length=MAX_STOPS),
    BeforeValidator(_as_list),
    WithJsonSchema(
        {
            "anyOf": [
                _STOP,
                {"type": "array", "items": _STOP, "maxItems": MAX_STOPS},
                {"type": "null"},
            ]
        }
    ),
]
