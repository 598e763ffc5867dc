"""Reads documents out of a request body, in every form that clients send them.

application/json            {"documents": [...]}
application/x-ndjson        one document object per line, read as it comes in
text/*, application/pdf, …  one document: the body is the file, ?doc_id= and ?title= name it
multipart/form-data         one document per file: the file's name is its doc_id

?collection= and ?readers=a,b hold for documents that name none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial

from fastapi import Request

from service.errors import BodyTooLarge, InvalidRequest, MalformedBody, UnsupportedMediaType
from service.gateway.documents.jobs.job_records import IngestDocument, SpooledFile
from service.gateway.documents.jobs.spool_folder import Upload
from service.gateway.documents.parsing.file_kinds import file_kind, kind_of_media_type
from service.gateway.documents.parsing.sent_documents import (
    file_document,
    json_document,
    line_limit,
    parse_line,
    split_readers,
)
from service.gateway.http.json_body import in_thread_if_long
from service.gateway.http.multipart import charset_of, read_form
from service.gateway.http.upload_limits import UploadValidator
from service.gateway.json_content import parse_json, validated
from service.gateway.schemas.admin import PrecomputeRequest
from service.settings.serving import LimitSettings

JSON_LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
DEFAULT_COLLECTION = "default"


async def read_documents(
    request: Request, limits: LimitSettings, upload: Upload
) -> AsyncIterator[IngestDocument]:
    """Read the documents of a body as they come in."""
    async for document in _read(request, limits, upload):
        yield await upload.hold(document)


async def _read(
    request: Request, limits: LimitSettings, upload: Upload
) -> AsyncIterator[IngestDocument]:
    content_type = request.headers.get("content-type", "application/json")
    media_type = content_type.partition(";")[0].strip().lower()
    validator = UploadValidator(limits)
    collection = _collection_of(request.query_params)
    readers = split_readers(request.query_params.get("readers", ""))
    if media_type == "application/json":
        body = await request.body()
        for document in await in_thread_if_long(
            body, _parse_documents, collection, readers, validator, limits
        ):
            yield document
    elif media_type in JSON_LINES:
        async for number, line in _lines(request, limits.max_document_bytes):
            parsed = await in_thread_if_long(line, parse_line, number, limits.max_body_values)
            own = parsed.collection or collection
            yield validator.accept(json_document(parsed, own, readers), f"line {number}")
    elif media_type.startswith("text/") or media_type in kind_of_media_type():
        sent = await _file_body(request, media_type, collection, readers, upload)
        yield validator.accept(sent, "body")
    elif media_type == "multipart/form-data":
        async for file in read_form(
            request.stream(), content_type, collection, readers, validator=validator, upload=upload
        ):
            yield file
    else:
        raise UnsupportedMediaType(
            f"{media_type} cannot be ingested: send application/json, {JSON_LINES[0]}, text/plain, "
            f"multipart/form-data, or a file as {', '.join(kind_of_media_type())}"
        )


def _collection_of(query: Mapping[str, str]) -> str:
    return query.get("collection", "") or DEFAULT_COLLECTION


async def _file_body(
    request: Request, media_type: str, collection: str, readers: list[str], upload: Upload
) -> IngestDocument:
    """Return a body that is one file."""
    query = request.query_params
    doc_id = query.get("doc_id", "")
    if not doc_id:
        raise InvalidRequest(
            "doc_id is required: a file as the body names its document with ?doc_id=…",
            field="doc_id",
        )
    content = await upload.receive(request.stream())
    read = partial(
        _file_of_body,
        title=query.get("title", ""),
        charset=charset_of(request.headers.get("content-type", "")),
        readers=readers,
    )
    return await in_thread_if_long(content, read, doc_id, collection, media_type)


def _file_of_body(
    content: bytes | SpooledFile,
    doc_id: str,
    collection: str,
    media_type: str,
    *,
    title: str,
    charset: str,
    readers: list[str],
) -> IngestDocument:
    # The doc_id is no file's name: text/plain may be called anything.
    start = content if isinstance(content, bytes) else content.start
    kind = file_kind("", media_type, start)
    return file_document(
        doc_id,
        collection,
        kind,
        content,
        title=title,
        metadata={},
        charset=charset,
        readers=readers,
    )


def _parse_documents(
    body: bytes,
    collection: str,
    readers: list[str],
    validator: UploadValidator,
    limits: LimitSettings,
) -> list[IngestDocument]:
    """Return the documents of a JSON body."""
    content = parse_json(body, limits.max_body_values)
    if isinstance(content, dict) and isinstance(content.get("documents"), list):
        validator.check_number(len(content["documents"]))
    sent = validated(content, PrecomputeRequest)
    return [
        validator.accept(
            json_document(document, document.collection or sent.collection or collection, readers),
            f"documents[{index}]",
        )
        for index, document in enumerate(sent.documents)
    ]


async def _lines(request: Request, document_bytes: int) -> AsyncIterator[tuple[int, bytes]]:
    """Yield (number, line) of every line that is not blank, numbered from 1."""
    number = 0
    rest = bytearray()
    async for part in request.stream():
        first, *others = part.split(b"\n")
        rest += first
        if others:
            for line in (bytes(rest), *others[:-1]):
                number += 1
                if line.strip():
                    yield number, line
            rest = bytearray(others[-1])
        if len(rest) > line_limit(document_bytes):
            raise BodyTooLarge(
                f"line {number + 1} is longer than any document may be: split the document",
                field=f"line {number + 1}",
            )
    if rest.strip():
        number += 1
        yield number, bytes(rest)
    if not number:
        raise MalformedBody("the body holds no documents: send one per line", field="body")
