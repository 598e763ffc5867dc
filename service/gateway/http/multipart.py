"""Reads multipart/form-data, one file after another as they come in.

A form may hold the fields `collection`, `metadata` (a JSON object), `readers` (groups with commas
between them) and `title`. A field counts for the files after it; `title` only for the next one.
Memory holds a part of one file at a time: large ones are written to the spool folder as they come.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.errors import InvalidRequest, MalformedBody
from service.gateway.documents.jobs.job_records import IngestDocument, SpooledFile
from service.gateway.documents.jobs.spool_folder import (
    INLINE_BYTES,
    START_BYTES,
    SpoolWriter,
    Upload,
)
from service.gateway.documents.parsing.file_kinds import file_kind, kind_of_start
from service.gateway.documents.parsing.sent_documents import file_document, split_readers
from service.gateway.http.json_body import in_thread_if_long
from service.gateway.http.upload_limits import UploadValidator
from service.gateway.json_content import NOT_UTF8

MAX_HEADER_BYTES = 16_384
MAX_FIELD_BYTES = 65_536


async def read_form(
    body: AsyncIterator[bytes],
    content_type: str,
    collection: str,
    readers: list[str],
    *,
    validator: UploadValidator,
    upload: Upload,
) -> AsyncIterator[IngestDocument]:
    """Read the files of a form."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise MalformedBody("the Content-Type of a form names its boundary; this one does not")
    parts = _PartCollector(validator)
    names = [name for name in vars(_PartCollector) if name.startswith("on_")]
    parser = MultipartParser(boundary, {name: getattr(parts, name) for name in names})  # type: ignore[arg-type]
    fields = _FormFields(collection, readers)
    files = 0
    try:
        async for data in body:
            parser.write(data)
            for part in parts.complete:
                content = await part.finish()
                document = await in_thread_if_long(content, fields.take, part)
                if document is not None:
                    files += 1
                    yield validator.accept(document, document.doc_id)
            parts.complete.clear()
            await parts.current.spill(upload)
    except MultipartParseError as error:
        raise MalformedBody(f"the form cannot be read: {error}", field="body") from error
    if not parts.ended:
        raise MalformedBody("the form ends in the middle: send it again", field="body")
    if not files:
        raise MalformedBody("the form holds no file: send one per document", field="body")


@dataclass
class _Part:
    headers: dict[str, str] = field(default_factory=dict)
    start: bytes = b""  # the first bytes of its content
    size: int = 0
    _content: bytearray = field(default_factory=bytearray)  # what is not in the file
    _file: SpoolWriter | None = None

    def add(self, data: bytes) -> None:
        self._content += data
        self.size += len(data)
        self.start = (self.start + data[:START_BYTES])[:START_BYTES]

    async def spill(self, upload: Upload) -> None:
        """Write what there is to a file, if that is much."""
        if len(self._content) >= INLINE_BYTES:
            self._file = self._file or await upload.writer()
            await self._file.write(bytes(self._content))
            self._content.clear()

    async def finish(self) -> bytes | SpooledFile:
        """Return all of the part's content."""
        if self._file is None:
            return bytes(self._content)
        await self._file.write(bytes(self._content))
        return await self._file.finish()

    @property
    def disposition(self) -> dict[bytes, bytes]:
        return dict(parse_options_header(self.headers.get("content-disposition", ""))[1])

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def charset(self) -> str:
        return charset_of(self.headers.get("content-type", ""))


class _PartCollector:
    """The parser's callbacks (`on_…`); collects the parts that are `complete`."""

    def __init__(self, validator: UploadValidator) -> None:
        self.complete: list[_Part] = []
        self.ended = False
        self._validator = validator
        self.current = _Part()
        self._header_name = b""
        self._header_value = b""
        self._header_bytes = 0

    def on_part_begin(self) -> None:
        self.current, self._header_bytes = _Part(), 0

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]
        self._count_header(end - start)

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]
        self._count_header(end - start)

    def on_header_end(self) -> None:
        name = self._header_name.decode("latin-1").lower()
        self.current.headers[name] = self._header_value.decode("latin-1")
        self._header_name = self._header_value = b""

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self.current.add(data[start:end])
        # PDF and Office files have their own limit, and the first bytes tell which one holds.
        kind = kind_of_start(self.current.start) or "text"
        self._validator.check_size(self.current.size, kind, "a file of the form")

    def on_part_end(self) -> None:
        self.complete.append(self.current)
        self.current = _Part()

    def on_end(self) -> None:
        self.ended = True

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            raise MalformedBody("a part of the form has headers that are too long", field="body")


class _FormFields:
    """The values of the fields read so far; they apply to the files that follow."""

    def __init__(self, collection: str, readers: list[str]) -> None:
        self._collection = collection
        self._metadata: dict[str, Any] = {}
        self._title = ""
        self._readers = readers

    def take(self, content: bytes | SpooledFile, part: _Part) -> IngestDocument | None:
        """Return the document of a file; None for a field, whose value is kept."""
        disposition = part.disposition
        name = _decoded(disposition.get(b"name", b""))
        file_name = _decoded(disposition.get(b"filename", b""))
        if not file_name and name in ("collection", "metadata", "readers", "title"):
            self._set(name, content)
            return None
        if not file_name and not name:
            raise MalformedBody("a part of the form has no name: name each file", field="body")
        doc_id = file_name or name
        kind = file_kind(doc_id, part.media_type, part.start)
        title, self._title = self._title, ""
        return file_document(
            doc_id,
            self._collection,
            kind,
            content,
            title=title,
            metadata=self._metadata,
            charset=part.charset,
            readers=self._readers,
        )

    def _set(self, name: str, content: bytes | SpooledFile) -> None:
        if isinstance(content, SpooledFile) or len(content) > MAX_FIELD_BYTES:
            raise InvalidRequest(f"{name} is longer than {MAX_FIELD_BYTES} bytes", field=name)
        value = _decoded(content)
        if name == "title":
            self._title = value
        elif name == "collection":
            self._collection = value or self._collection
        elif name == "readers":
            self._readers = split_readers(value)
        else:
            try:
                metadata = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise MalformedBody(f"metadata is not valid JSON: {error}", field=name) from error
            if not isinstance(metadata, dict):
                raise InvalidRequest("metadata must be a JSON object", field=name)
            self._metadata = metadata


def charset_of(content_type: str) -> str:
    """Return the charset that a Content-Type names; "" if it names none."""
    return parse_options_header(content_type)[1].get(b"charset", b"").decode("ascii", "ignore")


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise MalformedBody(f"a name or field of the form {NOT_UTF8}", field="body") from error
