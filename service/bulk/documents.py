"""The documents of a range, read and checked by the rules of `POST /admin/precompute`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from service.bulk.records import NewRange
from service.bulk.sources import Source
from service.errors import BodyTooLarge, InvalidRequest, KvstitchError
from service.gateway.documents.jobs.job_records import SpooledDocument, UploadedDocument
from service.gateway.documents.parsing.file_kinds import BINARY_KINDS, file_kind
from service.gateway.documents.parsing.sent_documents import (
    file_document,
    json_document,
    line_limit,
    parse_line,
)
from service.settings import Settings

Unread = tuple[str, str]  # doc_id or place, and what is wrong


class DocumentReader:
    """Reads the documents of ranges.

    Args:
        source: The input.
        settings: Limits of a document.
        tenant: Whose the documents are.
        collection: Of those that name none.
        metadata: Of those that are files; also of lines, where they do not say otherwise.
    """

    def __init__(
        self,
        source: Source,
        settings: Settings,
        *,
        tenant: str,
        collection: str,
        metadata: dict[str, Any],
    ) -> None:
        self._source = source
        self._settings = settings
        self._tenant = tenant
        self._collection = collection
        self._metadata = metadata

    def read(self, part: NewRange) -> Iterator[SpooledDocument | Unread]:
        """Yields every document of a range, numbered from 0, or what is wrong with it. Blocks.

        Raises:
            InvalidRequest: The file of lines cannot be read.
        """
        for number, sent in enumerate(self._files(part) if part.files else self._lines(part)):
            if not isinstance(sent, UploadedDocument):
                yield sent
                continue
            assert isinstance(sent.content, bytes)
            meta = json.loads(sent.meta)
            yield SpooledDocument(
                number, "", self._tenant, sent.collection, sent.doc_id, sent.kind, meta,
                sent.content,
            )  # fmt: skip

    def _files(self, part: NewRange) -> Iterator[UploadedDocument | Unread]:
        for name in part.files:
            try:
                content = self._source.read(name)
                kind = file_kind(PurePosixPath(name).name, "", content)
                self._check_size(len(content), kind, name)
                yield file_document(
                    name, self._collection, kind, content, title="", metadata=self._metadata
                )
            except KvstitchError as error:
                yield name, error.message

    def _lines(self, part: NewRange) -> Iterator[UploadedDocument | Unread]:
        content = self._source.read(part.path, part.start, part.length)
        for number, line in enumerate(content.split(b"\n"), part.first_line):
            if line.strip():
                yield self._line(f"{part.path}, ", number, line)

    def _line(self, file: str, number: int, line: bytes) -> UploadedDocument | Unread:
        try:
            if len(line) > line_limit(self._settings.max_document_bytes):
                raise BodyTooLarge(f"line {number} is longer than any document may be: split it")
            parsed = parse_line(line, number, self._settings.max_body_values)
            sent = json_document(parsed, parsed.collection or self._collection)
            sent.metadata.update({**self._metadata, **sent.metadata})
            self._check_size(sent.size, sent.kind, f"line {number}")
            if not sent.doc_id.strip() or not sent.collection.strip():
                raise InvalidRequest(f"line {number}: doc_id or collection is blank")
            return sent
        except KvstitchError as error:
            return f"{file}line {number}", error.message

    def _check_size(self, size: int, kind: str, place: str) -> None:
        settings = self._settings
        limit = settings.max_pdf_bytes if kind in BINARY_KINDS else settings.max_document_bytes
        if size > limit:
            raise BodyTooLarge(f"{place} is larger than {limit} bytes, the limit of one document")
