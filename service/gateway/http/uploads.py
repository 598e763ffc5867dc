"""Documents out of a request body, in the forms people send them. Knows no corpus.

application/json            {"documents": [...]}
application/x-ndjson        one document object per line, read as it comes
text/*, application/pdf     one document: the body is the file, ?doc_id= and ?title= name it
multipart/form-data         one document per file: the file's name is its doc_id (see forms.py)
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from service.errors import InvalidRequest
from service.gateway.corpus.job_records import UploadedDocument
from service.gateway.problems import (
    NOT_UTF8,
    BadBody,
    BodyTooLarge,
    Unroutable,
    from_validation,
    not_utf8,
)
from service.gateway.schemas import DocumentIn, PrecomputeRequest

JSON_LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
M = TypeVar("M", bound=BaseModel)
DEFAULT_COLLECTION = "default"
_KINDS = {
    ".md": "md", ".markdown": "md", ".html": "html", ".htm": "html", ".xhtml": "html",
    ".pdf": "pdf", ".txt": "text", ".text": "text",
}  # fmt: skip
_TYPES = {
    "text/markdown": "md",
    "text/html": "html",
    "application/xhtml+xml": "html",
    "application/pdf": "pdf",
}


@dataclass(frozen=True)
class UploadLimits:
    """Documents of a call, and bytes of one of them."""

    documents: int
    document_bytes: int
    pdf_bytes: int


class UploadValidator:
    """What holds for all documents of a call: how many, how large, none twice."""

    def __init__(self, limits: UploadLimits) -> None:
        self._limits = limits
        self._places: dict[tuple[str, str], int] = {}

    def add(self, document: UploadedDocument, place: str) -> UploadedDocument:
        """The document; `place` names it in errors. Raises InvalidRequest, BodyTooLarge."""
        index = len(self._places)
        if index >= self._limits.documents:
            raise InvalidRequest(
                f"documents holds more than {self._limits.documents} documents: send several calls",
                field="documents",
            )
        if not document.doc_id.strip():
            raise InvalidRequest(
                f"{place}.doc_id is blank: name the document", field=f"{place}.doc_id"
            )
        if not document.collection.strip():
            raise InvalidRequest(
                f"{place}.collection is blank: name the collection, or leave it out",
                field=f"{place}.collection",
            )
        first = self._places.setdefault((document.collection, document.doc_id), index)
        if first != index:
            raise InvalidRequest(
                f"{place}.doc_id {document.doc_id!r} is that of documents[{first}]: send each "
                "document once",
                field=f"{place}.doc_id",
            )
        self.check_size(len(document.content), document.kind, place)
        return document

    def check_size(self, size: int, kind: str, place: str) -> None:
        pdf = kind == "pdf"
        limit = self._limits.pdf_bytes if pdf else self._limits.document_bytes
        if size > limit:
            raise BodyTooLarge(
                f"{place} is larger than {limit} bytes, the limit of one document: split it",
                field=place,
            )


async def read_documents(request: Request, limits: UploadLimits) -> AsyncIterator[UploadedDocument]:
    """The documents of a body as they come in.

    Raises BadBody or InvalidRequest naming the field, BodyTooLarge, Unroutable (415).
    """
    # forms.py needs the names above.
    from service.gateway.http.multipart import read_form

    header = request.headers.get("content-type", "application/json")
    kind = header.partition(";")[0].strip().lower()
    counted = UploadValidator(limits)
    collection = collection_of(request.query_params)
    if kind == "application/json":
        given = _checked(_json(await request.body()), PrecomputeRequest)
        for index, document in enumerate(given.documents):
            own = document.collection or given.collection or collection
            yield counted.add(_incoming(document, own), f"documents[{index}]")
    elif kind in JSON_LINES:
        async for number, line in _lines(request, limits.document_bytes):
            document = _line(number, line)
            own = document.collection or collection
            yield counted.add(_incoming(document, own), f"line {number}")
    elif kind.startswith("text/") or kind in _TYPES:
        yield counted.add(await _body(request, kind, collection), "body")
    elif kind == "multipart/form-data":
        async for file in read_form(request.stream(), header, collection, counted):
            yield file
    else:
        raise Unroutable(
            415, f"{kind} cannot be ingested: send application/json, {JSON_LINES[0]}, text/plain, "
            "text/markdown, text/html, application/pdf or multipart/form-data"
        )  # fmt: skip


def collection_of(query: Mapping[str, str]) -> str:
    return query.get("collection", "") or DEFAULT_COLLECTION


def file_kind(name: str, media_type: str, content: bytes) -> str:
    """By its first bytes, its media type, its name; else text."""
    if content.startswith(b"%PDF-"):
        return "pdf"
    return _TYPES.get(media_type) or _KINDS.get(PurePath(name).suffix.lower(), "text")


def file_document(
    name: str, collection: str, kind: str, content: bytes, title: str, metadata: dict[str, Any]
) -> UploadedDocument:
    """A file as it was sent. Raises BadBody for text that is not UTF-8."""
    if kind in ("text", "md"):
        try:
            content = content.decode("utf-8-sig").encode()
        except UnicodeDecodeError as error:
            raise BadBody(f"{name} {NOT_UTF8} (byte {error.start})", field=name) from error
    if kind == "text" and not title:
        title = PurePath(name).stem
    # The same rules as for documents in JSON.
    given = {"doc_id": name, "text": "", "title": title, "metadata": metadata}
    checked = _checked({**given, "collection": collection}, DocumentIn)
    return UploadedDocument(
        checked.doc_id, collection, kind, content, checked.title, checked.metadata
    )


async def _body(request: Request, media_type: str, collection: str) -> UploadedDocument:
    query = request.query_params
    doc_id = query.get("doc_id", "")
    if not doc_id:
        raise InvalidRequest(
            "doc_id is required: a file as the body names its document with ?doc_id=…",
            field="doc_id",
        )
    content = await request.body()
    kind = "pdf" if content.startswith(b"%PDF-") else _TYPES.get(media_type, "text")
    title = query.get("title", "")
    if kind in ("text", "md"):
        try:
            content.decode()
        except UnicodeDecodeError as error:
            raise BadBody(f"body {NOT_UTF8} (byte {error.start})", field="body") from error
    return file_document(doc_id, collection, kind, content, title, {})


def _incoming(document: DocumentIn, collection: str) -> UploadedDocument:
    content = document.text.encode()
    return UploadedDocument(
        document.doc_id, collection, "text", content, document.title, document.metadata
    )


def _json(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise not_utf8(error) from error
    except json.JSONDecodeError as error:
        raise BadBody(
            f"the body is not valid JSON at character {error.pos}: {error.msg}", field="body"
        ) from error
    except RecursionError:
        raise BadBody("the body is nested too deeply", field="body") from None


async def _lines(request: Request, limit: int) -> AsyncIterator[tuple[int, bytes]]:
    """(number, line) of lines that are not blank, numbered from 1."""
    number = 0
    rest = b""
    async for part in request.stream():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            number += 1
            if line.strip():
                yield number, line
        # A line is JSON: every character of a document may take six.
        if len(rest) > 6 * limit + 65_536:
            raise BodyTooLarge(
                f"line {number + 1} is longer than any document may be: split the document",
                field=f"line {number + 1}",
            )
    if rest.strip():
        number += 1
        yield number, rest
    if not number:
        raise BadBody("the body holds no documents: send one per line", field="body")


def _line(number: int, line: bytes) -> DocumentIn:
    try:
        found = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadBody(f"line {number} {NOT_UTF8}", field=f"line {number}") from error
    except (ValueError, RecursionError) as error:
        raise BadBody(
            f"line {number} is not valid JSON: {error}", field=f"line {number}"
        ) from error
    try:
        return DocumentIn.model_validate(found)
    except ValidationError as error:
        cause = from_validation(error.errors(), DocumentIn)
        raise InvalidRequest(
            f"line {number}: {cause.message}", field=cause.field or f"line {number}"
        ) from None


def _checked(found: Any, model: type[M]) -> M:
    try:
        return model.model_validate(found)
    except ValidationError as error:
        raise from_validation(error.errors(), model) from None
