"""Cuts the input into ranges of some hundred documents, and reads the documents of a range.

To be cut, files of lines are read once, so that every range knows its documents and its first line.
Files that are documents are only listed. Documents are checked by the rules of
`POST /admin/precompute`, then the stages of ingestion take them from the queue of their range.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from kvstitch.service.errors import BodyTooLarge, InternalError, InvalidRequest, KvstitchError
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.gateway.documents.parsing.file_kinds import file_kind, is_binary
from kvstitch.service.gateway.http.sent_documents import (
    file_document,
    json_document,
    line_limit,
    parse_line,
)
from kvstitch.service.messages.replies import Precomputed
from kvstitch.service.settings import Settings
from kvstitch_ray.bulk.range_table import CUTTING, RangeTable
from kvstitch_ray.bulk.records import Counts, Range
from kvstitch_ray.bulk.sources import InputFile, Source

Unread = tuple[str, str]
"""The doc_id or place of a document that cannot be read, and what is wrong with it."""

RANGE_BYTES = 64 << 20  # of a range with several documents; bounds a worker's memory
WRITTEN_TOGETHER = 200  # ranges of whole files in one transaction


def cut(source: Source, table: RangeTable, run_id: str, range_documents: int) -> int:
    """Cut all files that are new or have changed since; return how many ranges were added."""
    added = 0
    with table.database.locked(CUTTING):
        known = table.versions(run_id)
        waiting: list[InputFile] = []
        for file in source.files():
            if known.get(file.name) == file.version:
                continue
            if not file.lines:
                waiting.append(file)
                if len(waiting) >= WRITTEN_TOGETHER * range_documents:
                    added += _add_files(table, run_id, waiting, range_documents)
                    waiting = []
                continue
            ranges = list(line_ranges(source, file.name, range_documents))
            table.add(run_id, {file.name: file.version}, ranges)
            added += len(ranges)
        added += _add_files(table, run_id, waiting, range_documents)
    return added


def _add_files(table: RangeTable, run_id: str, files: list[InputFile], range_documents: int) -> int:
    ranges = list(file_ranges(files, range_documents))
    if files:
        table.add(run_id, {file.name: file.version for file in files}, ranges)
    return len(ranges)


def file_ranges(files: list[InputFile], range_documents: int) -> Iterator[Range]:
    """Yield ranges of files that are documents."""
    names: list[str] = []
    size = 0
    for file in files:
        if names and (len(names) == range_documents or size + file.size > RANGE_BYTES):
            yield Range("", 0, size, 1, names, len(names))
            names, size = [], 0
        names.append(file.name)
        size += file.size
    if names:
        yield Range("", 0, size, 1, names, len(names))


def line_ranges(source: Source, name: str, range_documents: int) -> Iterator[Range]:
    """Yield ranges of a file of lines; blank lines are no documents."""
    start = position = documents = 0
    first_line = 1
    for line, text in enumerate(_lines(source.blocks(name)), 1):
        length = len(text)
        full = documents == range_documents or position + length - start > RANGE_BYTES
        if documents and full:
            yield Range(name, start, position - start, first_line, [], documents)
            start, first_line, documents = position, line, 0
        position += length
        documents += bool(text.strip())
    if documents:
        yield Range(name, start, position - start, first_line, [], documents)


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield lines with their ends."""
    rest: list[bytes] = []
    for block in blocks:
        *whole, last = block.split(b"\n")
        for text in whole:
            yield b"".join((*rest, text, b"\n"))
            rest = []
        if last:
            rest.append(last)
    if rest:
        yield b"".join(rest)


class DocumentReader:
    """Reads the documents of ranges."""

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

    def read(self, part: Range) -> Iterator[IngestDocument | Unread]:
        """Yield every document of a range, numbered from 0, or what is wrong with it. Blocks."""
        for number, sent in enumerate(self._files(part) if part.files else self._lines(part)):
            if isinstance(sent, IngestDocument):
                yield replace(sent, number=number, tenant=self._tenant)
            else:
                yield sent

    def _files(self, part: Range) -> Iterator[IngestDocument | Unread]:
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

    def _lines(self, part: Range) -> Iterator[IngestDocument | Unread]:
        content = self._source.read(part.path, part.start, part.length)
        for number, line in enumerate(content.split(b"\n"), part.first_line):
            if line.strip():
                yield self._line(f"{part.path}, ", number, line)

    def _line(self, file: str, number: int, line: bytes) -> IngestDocument | Unread:
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
        limit = settings.max_pdf_bytes if is_binary(kind) else settings.max_document_bytes
        if size > limit:
            raise BodyTooLarge(f"{place} is larger than {limit} bytes, the limit of one document")


class RangeQueue:
    """Satisfies `DocumentQueue`. Thread-safe; `pending` blocks while it reads."""

    def __init__(
        self,
        documents: Iterator[IngestDocument | Unread],
        counts: Counts,
        record_sizes: Callable[[Sequence[IngestDocument]], None],
        *,
        whole: bool = False,
    ) -> None:
        self._documents = documents
        self._counts = counts
        self._record_sizes = record_sizes
        self._lock = threading.Lock()
        self._held_back = whole
        self._whole = whole
        self._all_read = False
        self._pending: dict[int, IngestDocument] = {}
        self._indexed: dict[int, IngestDocument] = {}
        # Chunks that are counted, by LoRA adapter: those of a batch that is tried again come twice.
        self._counted: set[tuple[int, str]] = set()

    @property
    def ended(self) -> bool:
        """Whether every document is done or has failed."""
        return self._all_read and not self._pending and not self._indexed

    def pending(
        self,
        limit: int,
        max_bytes: int,
        *,
        without: Collection[int] = (),
        largest: int | None = None,
    ) -> list[IngestDocument]:
        size = sum(item.size for item in self._pending.values())
        while not self._all_read and len(self._pending) < limit and size < max_bytes:
            try:
                one = next(self._documents, None)
            except KvstitchError:
                raise
            except Exception as error:
                raise InternalError(f"the input cannot be read: {error}") from error
            with self._lock:
                if one is None:
                    self._all_read = True
                elif isinstance(one, IngestDocument):
                    self._pending[one.number] = one
                    size += one.size
                else:
                    self._counts.fail(*one)
        with self._lock:
            # The KV of an earlier revision is stored before a document is replaced.
            waiting = {item.key for item in self._indexed.values()}
            found: list[IngestDocument] = []
            for item in self._pending.values():
                if item.key in waiting:
                    break
                if item.number in without or item.size > (largest or item.size):
                    continue
                found.append(item)
            self._held_back = self._whole and bool(found)
            return found

    def indexed(self, limit: int) -> list[IngestDocument]:
        with self._lock:
            return [] if self._held_back else list(self._indexed.values())[:limit]

    def still_in(self, state: str, numbers: Sequence[int]) -> set[int]:
        with self._lock:
            return set(numbers) & set(self._pending if state == "pending" else self._indexed)

    def set_indexed(self, indexed: Sequence[IngestDocument]) -> None:
        self._record_sizes(indexed)
        with self._lock:
            for item in indexed:
                del self._pending[item.number]
                if said := json.loads(item.warnings):
                    self._counts.warn(item.doc_id, [one["message"] for one in said])
                self._indexed[item.number] = replace(
                    item, kind="", content=b"", title="", metadata={}
                )
                self._counts.chunks += item.chunks
                self._counts.tokens += item.tokens

    def set_done(self, numbers: Sequence[int]) -> None:
        with self._lock:
            for number in numbers:
                del self._indexed[number]
                self._counts.done += 1

    def set_failed(
        self, failed: Sequence[tuple[IngestDocument, str]], state: str = "failed"
    ) -> None:
        with self._lock:
            for item, message in failed:
                if self._pending.pop(item.number, None) is None:
                    del self._indexed[item.number]
                self._counts.fail(item.doc_id, message)

    def on_reply(self, reply: Precomputed, lora: str, tokens: float) -> None:
        """Count a chunk that the tiers hold: it was stored just now, or was present."""
        key = (reply.chunk_id, lora)
        if reply.status == "stored":
            self._counts.bytes += reply.bytes
        if reply.status == "failed" or key in self._counted:
            return
        self._counted.add(key)
        self._counts.stored += reply.status == "stored"
        self._counts.present += reply.status == "present"
