"""Reads documents out of a request body, in every form that clients send them.

application/json            {"documents": [...]}
application/x-ndjson        one document object per line, read as it comes in
text/*, application/pdf, …  one document: the body is the file, ?doc_id= and ?title= name it
multipart/form-data         one document per file: the file's name is its doc_id

?collection=, ?readers=a,b and ?writers=a,b hold for documents that name none; ?source= names where
all of them come from. A form may hold the fields `collection`, `metadata` (a JSON object),
`readers`, `writers` and `title`. A field counts for the files after it; `title` only for the next
one.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from kvstitch.service.errors import (
    BodyTooLarge,
    InvalidRequest,
    MalformedBody,
    UnsupportedMediaType,
)
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument, SpooledFile
from kvstitch.service.gateway.documents.jobs.spool_folder import Upload
from kvstitch.service.gateway.documents.parsing.file_kinds import (
    file_kind,
    is_binary,
    kind_of_media_type,
    kind_of_start,
)
from kvstitch.service.gateway.http.dependencies import INLINE_BYTES, MOST_NAMES, GatewayDep, note
from kvstitch.service.gateway.http.multipart import Part, charset_of, decoded, read_parts
from kvstitch.service.gateway.http.sent_documents import (
    file_document,
    json_document,
    line_limit,
    parse_line,
    split_readers,
)
from kvstitch.service.gateway.json_content import read_json, validated
from kvstitch.service.gateway.schemas.admin import PrecomputeRequest
from kvstitch.service.settings.serving import LimitSettings

JSON_LINES = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")
MAX_FIELD_BYTES = 65_536
MAX_SOURCE_CHARS = 256
T = TypeVar("T")


class UploadReader:
    """The documents of one call, checked: how many, how large, and that none is sent twice."""

    def __init__(self, request: Request, limits: LimitSettings, upload: Upload) -> None:
        self._request, self._limits, self._upload = request, limits, upload
        # What holds for the next document; fields of a form change it.
        self._collection = request.query_params.get("collection", "") or "default"
        self._readers = split_readers(request.query_params.get("readers", ""))
        self._writers = split_readers(request.query_params.get("writers", "")) or None
        self._source = request.query_params.get("source", "")
        if len(self._source) > MAX_SOURCE_CHARS:
            raise InvalidRequest(f"source is longer than {MAX_SOURCE_CHARS}", field="source")
        self._title = ""
        self._metadata: dict[str, Any] = {}
        # (collection, doc_id) to the document's index in the call.
        self._index_of: dict[tuple[str, str], int] = {}

    async def documents(self) -> AsyncIterator[IngestDocument]:
        """Read the documents as they come in, and note their names."""
        names: list[str] = []
        count = 0
        note(self._request, doc_ids=names)
        async for document in self._read():
            held = await self._upload.hold(document)
            if self._source:
                held = await asyncio.to_thread(held.from_source, self._source)
            count += 1
            if len(names) < MOST_NAMES:
                names.append(f"{held.collection}/{held.doc_id}")
            note(self._request, documents=count)
            yield held

    async def _read(self) -> AsyncIterator[IngestDocument]:
        content_type = self._request.headers.get("content-type", "application/json")
        media_type = content_type.partition(";")[0].strip().lower()
        if media_type == "application/json":
            body = await self._request.body()
            for document in await in_thread_if_long(body, self._parse_documents):
                yield document
        elif media_type in JSON_LINES:
            limit = self._limits.max_body_values
            async for number, line in self._lines():
                sent = await in_thread_if_long(line, parse_line, number, limit)
                named = self._readers, self._writers
                document = json_document(sent, sent.collection or self._collection, *named)
                yield self._accept(document, f"line {number}")
        elif media_type.startswith("text/") or media_type in kind_of_media_type():
            doc_id = self._request.query_params.get("doc_id", "")
            if not doc_id:
                raise InvalidRequest(
                    "doc_id is required: a file as the body names its document with ?doc_id=…",
                    field="doc_id",
                )
            self._title = self._request.query_params.get("title", "")
            content = await self._upload.receive(self._request.stream())
            start = content if isinstance(content, bytes) else content.start
            # The doc_id is no file's name: text/plain may be called anything.
            kind = file_kind("", media_type, start)
            charset = charset_of(content_type)
            yield self._accept(
                await in_thread_if_long(content, self._file, doc_id, kind, charset), "body"
            )
        elif media_type == "multipart/form-data":
            stream = self._request.stream()
            async for part in read_parts(stream, content_type, self._upload, self._check_part):
                file = await in_thread_if_long(part.content, self._part, part)
                if file is not None:
                    yield self._accept(file, file.doc_id)
            if not self._index_of:
                raise MalformedBody("the form holds no file: send one per document", field="body")
        else:
            raise UnsupportedMediaType(
                f"{media_type} cannot be ingested: send application/json, {JSON_LINES[0]}, "
                "text/plain, multipart/form-data, or a file as "
                f"{', '.join(kind_of_media_type())}"
            )

    def _parse_documents(self, body: bytes) -> list[IngestDocument]:
        sent = read_json(body, self._limits.max_body_values, PrecomputeRequest)
        sent = sent or validated(None, PrecomputeRequest)
        self._check_number(len(sent.documents))
        collection = sent.collection or self._collection
        return [
            self._accept(
                json_document(
                    document, document.collection or collection, self._readers, self._writers
                ),
                f"documents[{index}]",
            )
            for index, document in enumerate(sent.documents)
        ]

    async def _lines(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield (number, line) of every line that is not blank, numbered from 1."""
        number = 0
        rest = bytearray()
        async for part in self._request.stream():
            first, *others = part.split(b"\n")
            rest += first
            if others:
                for line in (bytes(rest), *others[:-1]):
                    number += 1
                    if line.strip():
                        yield number, line
                rest = bytearray(others[-1])
            if len(rest) > line_limit(self._limits.max_document_bytes):
                raise BodyTooLarge(
                    f"line {number + 1} is longer than any document may be: split the document",
                    field=f"line {number + 1}",
                )
        if rest.strip():
            number += 1
            yield number, bytes(rest)
        if not number:
            raise MalformedBody("the body holds no documents: send one per line", field="body")

    def _part(self, content: bytes | SpooledFile, part: Part) -> IngestDocument | None:
        """Return the document of a form's file; None for a field, whose value is kept."""
        name, file_name = part.named(b"name"), part.named(b"filename")
        if not file_name and name in ("collection", "metadata", "readers", "writers", "title"):
            self._set(name, content)
            return None
        if not file_name and not name:
            raise MalformedBody("a part of the form has no name: name each file", field="body")
        doc_id = file_name or name
        kind = file_kind(doc_id, part.media_type, part.start)
        return self._file(content, doc_id, kind, part.charset)

    def _set(self, name: str, content: bytes | SpooledFile) -> None:
        if isinstance(content, SpooledFile) or len(content) > MAX_FIELD_BYTES:
            raise InvalidRequest(f"{name} is longer than {MAX_FIELD_BYTES} bytes", field=name)
        value = decoded(content)
        if name == "title":
            self._title = value
        elif name == "collection":
            self._collection = value or self._collection
        elif name == "readers":
            self._readers = split_readers(value)
        elif name == "writers":
            self._writers = split_readers(value) or None
        else:
            try:
                metadata = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise MalformedBody(f"metadata is not valid JSON: {error}", field=name) from error
            if not isinstance(metadata, dict):
                raise InvalidRequest("metadata must be a JSON object", field=name)
            self._metadata = metadata

    def _file(
        self, content: bytes | SpooledFile, doc_id: str, kind: str, charset: str
    ) -> IngestDocument:
        title, self._title = self._title, ""
        return file_document(
            doc_id,
            self._collection,
            kind,
            content,
            title=title,
            metadata=self._metadata,
            charset=charset,
            readers=self._readers,
            writers=self._writers,
        )

    def _accept(self, document: IngestDocument, place: str) -> IngestDocument:
        """Check one more document and return it."""
        index = len(self._index_of)
        self._check_number(index + 1)
        if not document.doc_id.strip():
            raise InvalidRequest(
                f"{place}.doc_id is blank: name the document", field=f"{place}.doc_id"
            )
        if not document.collection.strip():
            raise InvalidRequest(
                f"{place}.collection is blank: name the collection, or leave it out",
                field=f"{place}.collection",
            )
        first = self._index_of.setdefault((document.collection, document.doc_id), index)
        if first != index:
            raise InvalidRequest(
                f"{place}.doc_id {document.doc_id!r} is that of documents[{first}]: send each "
                "document once",
                field=f"{place}.doc_id",
            )
        self._check_size(document.size, document.kind, place)
        return document

    def _check_number(self, documents: int) -> None:
        if documents > self._limits.max_documents:
            raise InvalidRequest(
                f"documents holds more than {self._limits.max_documents} documents: send several "
                "calls",
                field="documents",
            )

    def _check_part(self, part: Part) -> None:
        # PDF and Office files have their own limit, and the first bytes tell which one holds.
        self._check_size(part.size, kind_of_start(part.start) or "text", "a file of the form")

    def _check_size(self, size: int, kind: str, place: str) -> None:
        limits = self._limits
        limit = limits.max_pdf_bytes if is_binary(kind) else limits.max_document_bytes
        if size > limit:
            raise BodyTooLarge(
                f"{place} is larger than {limit} bytes, the limit of one document: split it",
                field=place,
            )


async def _upload(
    request: Request, gateway: GatewayDep
) -> AsyncIterator[AsyncIterator[IngestDocument]]:
    upload = gateway.corpus.spool.upload()
    try:
        yield UploadReader(request, gateway.settings, upload).documents()
    finally:
        await upload.close()


UploadDep = Annotated[AsyncIterator[IngestDocument], Depends(_upload)]


async def in_thread_if_long(
    body: bytes | bytearray | SpooledFile, parse: Callable[..., T], *more: Any
) -> T:
    """Return `parse(body, *more)`, computed in a thread if the body is so long that others wait."""
    if not isinstance(body, SpooledFile) and len(body) <= INLINE_BYTES:
        return parse(body, *more)
    return await asyncio.to_thread(parse, body, *more)
