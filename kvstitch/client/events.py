"""Reads what the service answers: records of JSON, and the lines of a streamed answer."""

import base64
import dataclasses
import json
import sys
import types
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from kvstitch.records.answers import Answer, Citation, Embeddings
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
    for one in dataclasses.fields(kind):
        if one.name in data:
            given[one.name] = _value(hints[one.name], data[one.name])
        elif ABSENT in one.metadata:
            given[one.name] = one.metadata[ABSENT]
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


@dataclass(frozen=True)
class Sources:
    """The passages that the prompt holds; they come first."""

    citations: list[Citation]
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Token:
    """The next piece of the answer's text. logprobs: where the request asks for them."""

    text: str
    logprobs: list[dict[str, Any]] | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Done:
    """The whole answer; it comes last."""

    answer: Answer


Event = Sources | Token | Done


@dataclass
class LineReader:
    """Reads server-sent events as the service writes them: one line of JSON each."""

    _name: str = ""

    def feed(self, line: str) -> tuple[str, Any] | None:
        """Return name and data of the event that this line completes, if it completes one.

        Comments and `[DONE]` are none; OpenAI's have no name. ValueError: the data is no JSON.
        """
        if line.startswith("event: "):
            self._name = line.removeprefix("event: ")
        if not line.startswith("data: ") or line == "data: [DONE]":
            return None
        return self._name, json.loads(line.removeprefix("data: "))


def server_sent_events(lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield name and data of every event in the lines of a response."""
    reader = LineReader()
    return (event for line in lines if (event := reader.feed(line)) is not None)
