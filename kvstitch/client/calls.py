"""Every call of the API as a value: what is sent, and how the answer is read.

Nothing here sends anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from kvstitch.client.errors import InvalidRequest
from kvstitch.client.json_reader import decode_vectors, read
from kvstitch.client.results import (
    Answer,
    Collection,
    Document,
    Embeddings,
    Explanation,
    Job,
    Methods,
    Receipt,
    Reranking,
    SearchResults,
)

T = TypeVar("T")
Page = tuple[list[T], str | None]
GENERATE = "/v1/rag/generate"
PAGE_ITEMS = 200


@dataclass(frozen=True)
class Call(Generic[T]):
    """One HTTP request.

    Attributes:
        method: Of HTTP.
        path: Of the route.
        read: Makes the result of the response's JSON.
        repeatable: Whether sending it twice is the same as sending it once.
        content: Arguments of httpx that make query and body.
        headers: Besides those of every call.
    """

    method: str
    path: str
    read: Callable[[Any], T]
    repeatable: bool = True
    content: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


# -- asking ---------------------------------------------------------------------------------------


def generate(question: str | None, options: Mapping[str, Any]) -> Call[Answer]:
    return _post(GENERATE, partial(read, Answer), {"question": question, **options})


def stream(question: str | None, options: Mapping[str, Any]) -> Call[None]:
    """The result is read from the stream's events."""
    body = {"question": question, **options, "stream": True}
    return _post(GENERATE, lambda _: None, body)


def explain(question: str | None, options: Mapping[str, Any]) -> Call[Explanation]:
    body = {"question": question, **options, "explain": True}
    return _post(GENERATE, partial(read, Explanation), body)


def search(query: str, options: Mapping[str, Any]) -> Call[SearchResults]:
    return _post("/v1/search", partial(read, SearchResults), {"query": query, **options})


def rerank(
    query: str, documents: Sequence[str], top_n: int | None, model: str | None
) -> Call[Reranking]:
    body = {
        "query": query,
        "documents": list(documents),
        "top_n": top_n,
        "model": model,
        "return_documents": True,
    }
    return _post("/v1/rerank", partial(read, Reranking), body)


def embeddings(texts: Sequence[str], model: str | None) -> Call[Embeddings]:
    body = {"input": list(texts), "model": model, "encoding_format": "base64"}
    return _post("/v1/embeddings", _embeddings, body)


def methods() -> Call[Methods]:
    return Call("GET", "/v1/methods", partial(read, Methods))


def status() -> Call[dict[str, Any]]:
    return Call("GET", "/status", dict)


# -- documents in ---------------------------------------------------------------------------------


def precompute(
    documents: Sequence[Mapping[str, Any]], collection: str | None, key: str
) -> Call[Job]:
    body = {"documents": [dict(one) for one in documents], **_given({"collection": collection})}
    return _submission({"json": body}, key)


def precompute_files(
    files: Sequence[tuple[str, bytes, str]], fields: Mapping[str, str], key: str
) -> Call[Job]:
    """`files`: (doc_id, content, media type); `fields`: of the form, they hold for every file."""
    parts = [("file", file) for file in files]
    return _submission({"data": dict(fields), "files": parts}, key)


def precompute_lines(lines: Iterable[bytes], collection: str | None, key: str) -> Call[Job]:
    content = {"content": b"\n".join(lines), "params": _given({"collection": collection})}
    return _submission(content, key, {"Content-Type": "application/x-ndjson"})


def get_job(job_id: str, errors: int | None) -> Call[Job]:
    path = f"/admin/jobs/{_in_path(job_id, 'job_id')}"
    return Call("GET", path, partial(read, Job), content={"params": _given({"errors": errors})})


def cancel_job(job_id: str) -> Call[Job]:
    path = f"/admin/jobs/{_in_path(job_id, 'job_id')}"
    return Call("DELETE", path, partial(read, Job), repeatable=False)


def job_page(state: str | None, cursor: str | None, limit: int) -> Call[Page[Job]]:
    query = {"state": state, "cursor": cursor, "limit": limit}
    return _page("/admin/jobs", "jobs", Job, query)


# -- stored documents -----------------------------------------------------------------------------


def get_document(doc_id: str, collection: str | None) -> Call[Document]:
    return _document("GET", "documents", doc_id, collection, Document)


def delete_document(doc_id: str, collection: str | None) -> Call[Receipt]:
    return _document("DELETE", "documents", doc_id, collection, Receipt)


def pin(doc_id: str, collection: str | None, *, pinned: bool) -> Call[Document]:
    return _document("PUT" if pinned else "DELETE", "pins", doc_id, collection, Document)


def delete_documents(
    doc_ids: Sequence[str] | None, where: Mapping[str, Any] | None, collection: str | None
) -> Call[Receipt]:
    body = {
        "doc_ids": None if doc_ids is None else list(doc_ids),
        "filter": where,
        "collection": collection,
    }
    return _post("/admin/deletions", partial(read, Receipt), body, repeatable=False)


def get_receipt(receipt_id: str) -> Call[Receipt]:
    path = f"/admin/receipts/{_in_path(receipt_id, 'receipt_id')}"
    return Call("GET", path, partial(read, Receipt))


def document_page(collection: str | None, cursor: str | None, limit: int) -> Call[Page[Document]]:
    query = {"collection": collection, "cursor": cursor, "limit": limit}
    return _page("/admin/documents", "documents", Document, query)


def collections() -> Call[list[Collection]]:
    def all_of(data: Any) -> list[Collection]:
        return [read(Collection, one) for one in data["collections"]]

    return Call("GET", "/admin/collections", all_of)


def delete_collection(collection: str) -> Call[Receipt]:
    path = f"/admin/collections/{_in_path(collection, 'collection')}"
    return Call("DELETE", path, partial(read, Receipt), repeatable=False)


# -- parts ----------------------------------------------------------------------------------------


def _post(
    path: str, read_: Callable[[Any], T], body: Mapping[str, Any], *, repeatable: bool = True
) -> Call[T]:
    body = _given(body)
    headers = {}
    if (deadline_s := body.pop("deadline_s", None)) is not None:
        headers["X-Request-Deadline-Ms"] = str(max(1, round(1000 * deadline_s)))
    return Call("POST", path, read_, repeatable, {"json": body}, headers)


def _submission(
    content: Mapping[str, Any], key: str, headers: Mapping[str, str] = MappingProxyType({})
) -> Call[Job]:
    """The key makes it repeatable: the service answers the second one with the same job."""
    headers = {**headers, "Idempotency-Key": key}
    return Call("POST", "/admin/precompute", partial(read, Job), True, content, headers)


def _document(
    method: str, route: str, doc_id: str, collection: str | None, kind: type[T]
) -> Call[T]:
    path = f"/admin/{route}/{_in_path(doc_id, 'doc_id')}"
    content = {"params": _given({"collection": collection})}
    return Call(method, path, partial(read, kind), method == "GET", content)


def _page(path: str, name: str, kind: type[T], query: Mapping[str, Any]) -> Call[Page[T]]:
    def page(data: Any) -> Page[T]:
        return [read(kind, one) for one in data[name]], data["next_cursor"]

    return Call("GET", path, page, content={"params": _given(query)})


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _in_path(name: str, field: str) -> str:
    """A name as a part of a path.

    Raises:
        InvalidRequest: The path would lead to another route.
    """
    if not name or any(part in (".", "..") for part in name.split("/")):
        raise InvalidRequest(
            f"{field} {name!r} cannot be named in a URL: use delete_documents or a filter",
            field=field,
        )
    return quote(name, safe="/")


def _embeddings(data: Any) -> Embeddings:
    return Embeddings(
        raw=data,
        model=data["model"],
        vectors=decode_vectors(data["data"]),
        tokens=data["usage"]["prompt_tokens"],
    )
