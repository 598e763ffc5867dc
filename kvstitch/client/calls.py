"""A call of the API as a value: what is sent, and how the answer is read. The clients send it."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from kvstitch.client.errors import InvalidRequest
from kvstitch.client.events import read
from kvstitch.client.options import UploadOptions
from kvstitch.records.documents import Job

T = TypeVar("T")
Page = tuple[list[T], str | None]
GENERATE = "/v1/rag/generate"


@dataclass(frozen=True)
class Call(Generic[T]):
    """One HTTP request."""

    method: str  # HTTP method
    path: str  # path of the route
    read: Callable[[Any], T]  # makes the result from the response's JSON
    repeatable: bool = True  # whether sending it twice is the same as sending it once
    # Arguments of httpx that make query and body.
    content: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)  # headers besides those of every call


def get(path: str, kind: type[T], query: Mapping[str, Any] = MappingProxyType({})) -> Call[T]:
    return Call("GET", path, partial(read, kind), content={"params": given(query)})


def delete(path: str, kind: type[T], query: Mapping[str, Any] = MappingProxyType({})) -> Call[T]:
    return Call("DELETE", path, partial(read, kind), False, {"params": given(query)})


def post(path: str, kind: type[T], body: Mapping[str, Any], *, repeatable: bool = True) -> Call[T]:
    body = given(body)
    headers = {}
    if (deadline_s := body.pop("deadline_s", None)) is not None:
        headers["X-Request-Deadline-Ms"] = str(max(1, round(1000 * deadline_s)))
    return Call("POST", path, partial(read, kind), repeatable, {"json": body}, headers)


def submission(
    content: Mapping[str, Any],
    options: UploadOptions,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Call[Job]:
    """Hand documents in. The key makes it repeatable: the service answers the second one with the
    same job."""
    headers = {**headers, "Idempotency-Key": options.get("idempotency_key") or uuid.uuid4().hex}
    query = {
        "collection": options.get("collection"),
        "readers": ",".join(options.get("readers", ())),
        "writers": ",".join(options.get("writers", ())),
        "source": options.get("source"),
    }
    content = {**content, "params": {name: value for name, value in query.items() if value}}
    return Call("POST", "/admin/precompute", partial(read, Job), True, content, headers)


def page(path: str, name: str, kind: type[T], query: Mapping[str, Any]) -> Call[Page[T]]:
    """Ask for a page of a list, which the answer has under `name`."""

    def read_page(data: Any) -> Page[T]:
        return [read(kind, one) for one in data[name]], data["next_cursor"]

    return Call("GET", path, read_page, content={"params": given(query)})


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def path_of(route: str, name: str, field: str) -> str:
    """Return the path of what is named below a route; `field` is for the error.

    Raises InvalidRequest if the path would lead to another route.
    """
    if not name or any(part in (".", "..") for part in name.split("/")):
        raise InvalidRequest(
            f"{field} {name!r} cannot be named in a URL: use delete_documents or a filter",
            field=field,
        )
    return f"{route}/{quote(name, safe='/')}"
