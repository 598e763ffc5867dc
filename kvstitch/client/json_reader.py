"""Makes results of JSON: dataclasses by the types of their fields, and vectors of base64."""

from __future__ import annotations

import base64
import dataclasses
import sys
import types
from array import array
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from kvstitch.records.answers import Embeddings
from kvstitch.records.base import ABSENT, Result
from kvstitch.records.documents import Collection

R = TypeVar("R")


def read(kind: type[R], data: Any) -> R:
    """Make a result of JSON; LookupError or TypeError if it is something else."""
    made: R = _read(kind, data)
    return made


def _read(kind: Any, data: Any) -> Any:
    hints = _hints(kind)
    given: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in data:
            given[field.name] = _value(hints[field.name], data[field.name])
        elif ABSENT in field.metadata:
            given[field.name] = field.metadata[ABSENT]
    return with_raw(kind(**given), data)


def with_raw(made: R, data: Any) -> R:
    """Give a whole answer the JSON that it was made of."""
    if isinstance(made, Result):
        object.__setattr__(made, "raw", data)
    return made


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(hint: Any, data: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if data is None:
            return None
        hint = next(one for one in get_args(hint) if one is not type(None))
        origin = get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return _read(hint, data)
    if origin is list:
        (item,) = get_args(hint)
        return [_value(item, one) for one in data]
    return data


def read_collections(data: Any) -> list[Collection]:
    return [read(Collection, one) for one in data["collections"]]


def read_embeddings(data: Any) -> Embeddings:
    """Read OpenAI's embedding objects, in the order of their `index`."""
    rows = sorted(data["data"], key=lambda row: int(row["index"]))
    found = Embeddings(
        model=data["model"],
        vectors=[_vector(row["embedding"]) for row in rows],
        tokens=data["usage"]["prompt_tokens"],
    )
    return with_raw(found, data)


def _vector(encoded: str) -> list[float]:
    numbers = array("f", base64.b64decode(encoded))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
