"""multipart/form-data, one file after another as they come in. Knows no corpus.

Fields that come before a file hold for it and those after it: `collection`, `metadata` (a JSON
object). A file is held in memory until it is whole, never the form.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.errors import InvalidRequest
from service.gateway.corpus.job_records import UploadedDocument
from service.gateway.http.uploads import UploadValidator, file_document, file_kind
from service.gateway.problems import NOT_UTF8, BadBody

MAX_HEADER_BYTES = 16_384
MAX_FIELD_BYTES = 65_536


@dataclass
class _Part:
    headers: dict[str, str] = field(default_factory=dict)
    content: bytearray = field(default_factory=bytearray)

    @property
    def disposition(self) -> dict[bytes, bytes]:
        return dict(parse_options_header(self.headers.get("content-disposition", ""))[1])

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class _Form:
    """Callbacks of the parser; `whole` are the parts that have ended since it was emptied."""

    def __init__(self, counted: UploadValidator) -> None:
        self.whole: list[_Part] = []
        self.ended = False
        self._counted = counted
        self._part = _Part()
        self._name = b""
        self._value = b""
        self._header_bytes = 0

    def on_part_begin(self) -> None:
        self._part, self._header_bytes = _Part(), 0

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]
        self._count(end - start)

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._count(end - start)

    def on_header_end(self) -> None:
        self._part.headers[self._name.decode("latin-1").lower()] = self._value.decode("latin-1")
        self._name = self._value = b""

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._part.content += data[start:end]
        # A file is known by its first bytes, so what it may take is known while it comes.
        kind = "pdf" if self._part.content.startswith(b"%PDF-") else "text"
        self._counted.check_size(len(self._part.content), kind, "a file of the form")

    def on_part_end(self) -> None:
        self.whole.append(self._part)

    def on_end(self) -> None:
        self.ended = True

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            raise BadBody("a part of the form has headers that are too long", field="body")


async def read_form(
    body: AsyncIterator[bytes], header: str, collection: str, counted: UploadValidator
) -> AsyncIterator[UploadedDocument]:
    """The files of a form. Raises BadBody, InvalidRequest, BodyTooLarge."""
    boundary = parse_options_header(header)[1].get(b"boundary")
    if not boundary:
        raise BadBody("the Content-Type of a form names its boundary; this one does not")
    form = _Form(counted)
    names = [name for name in vars(_Form) if name.startswith("on_")]
    parser = MultipartParser(boundary, {name: getattr(form, name) for name in names})  # type: ignore[arg-type]
    settings = _Settings(collection)
    files = 0
    try:
        async for data in body:
            parser.write(data)
            for part in form.whole:
                document = settings.take(part)
                if document is not None:
                    files += 1
                    yield counted.add(document, document.doc_id)
            form.whole.clear()
    except MultipartParseError as error:
        raise BadBody(f"the form cannot be read: {error}", field="body") from error
    if not form.ended:
        raise BadBody("the form ends in the middle: send it again", field="body")
    if not files:
        raise BadBody("the form holds no file: send one per document", field="body")


class _Settings:
    """What the fields so far have said."""

    def __init__(self, collection: str) -> None:
        self._collection = collection
        self._metadata: dict[str, Any] = {}
        self._title = ""

    def take(self, part: _Part) -> UploadedDocument | None:
        """The document of a file; None for a field."""
        given = part.disposition
        name, file_name = _text(given.get(b"name", b"")), _text(given.get(b"filename", b""))
        content = bytes(part.content)
        if not file_name and name in ("collection", "metadata", "title"):
            self._set(name, content)
            return None
        if not file_name and not name:
            raise BadBody("a part of the form has no name: name each file", field="body")
        doc_id = file_name or name
        kind = file_kind(doc_id, part.media_type, content)
        title, self._title = self._title, ""
        return file_document(doc_id, self._collection, kind, content, title, self._metadata)

    def _set(self, name: str, content: bytes) -> None:
        if len(content) > MAX_FIELD_BYTES:
            raise InvalidRequest(f"{name} is longer than {MAX_FIELD_BYTES} bytes", field=name)
        value = _text(content)
        if name == "title":
            self._title = value
        elif name == "collection":
            self._collection = value or self._collection
        else:
            try:
                found = json.loads(value)
            except (ValueError, RecursionError) as error:
                raise BadBody(f"metadata is not valid JSON: {error}", field=name) from error
            if not isinstance(found, dict):
                raise InvalidRequest("metadata must be a JSON object", field=name)
            self._metadata = found


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadBody(f"a name or field of the form {NOT_UTF8}", field="body") from error
