"""Documents on their way in and their jobs, as the job store takes and returns them."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from kvstitch.records.documents import Job, JobFault, WarnedDocument
from kvstitch.retriever import Scope
from kvstitch.retriever.scope import ANY_PEN, EVERYBODY, EVERYTHING, Pen, View
from kvstitch.service.gateway.documents.pace import WorkAhead

NO_WARNINGS = "[]"


def pen_of(view: str, writes: str | None, takes: int) -> Pen:
    """Return the pen of who sent a job, as its row says."""
    return Pen(View.named(view if writes is None else writes).groups, bool(takes))


BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class SpooledFile:
    """Content that is too long for the database."""

    path: Path
    size: int  # of the content, in bytes
    start: bytes = b""  # the first bytes, which tell its kind; b"" once that is known

    def blocks(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                yield block

    def read(self) -> bytes:
        return self.path.read_bytes()


@dataclass(frozen=True)
class IngestDocument:
    """A document on its way in, until its KV is stored. Kind, content, title and metadata are kept
    no longer than until it is indexed."""

    doc_id: str  # its name within the collection
    collection: str
    kind: str  # of file: see parsing/file_kinds.py
    content: bytes | SpooledFile  # UTF-8 text for text, md and rst, else the bytes of the file
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    tenant: str = ""
    number: int = 0  # among all that were accepted; 0 before
    job_id: str = ""
    readers: str = EVERYBODY  # the groups that may read it (retriever/scope.py)
    charset: str = ""  # that the sender names, for files of text; may be wrong or unknown
    view: View = EVERYTHING  # of its sender: what they may not read is not replaced
    pen: Pen = ANY_PEN  # likewise: nor what they may not change
    writers: str | None = None  # the groups that may change it; None: as is stored
    source: str = ""  # what the sender calls the place that it came from
    sha256: str = ""  # of its content, where it has a source
    known: bool = False  # the same bytes are stored: nothing is expected to change
    # Once it is indexed:
    change: str = ""  # created, updated or unchanged
    chunks: int = 0
    tokens: int = 0
    warnings: str = NO_WARNINGS  # JSON of ParseWarnings

    @property
    def scope(self) -> Scope:
        """Where it goes, as its sender sees it."""
        return Scope(self.tenant, self.collection, self.view, self.pen)

    @property
    def key(self) -> tuple[str, str, str]:
        """(tenant, collection, doc_id): what it replaces when it is indexed."""
        return self.tenant, self.collection, self.doc_id

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.size

    @property
    def meta(self) -> str:
        """Title, metadata, readers, writers, charset and source as JSON, under the names of their
        fields."""
        fields: dict[str, Any] = {"title": self.title, "metadata": self.metadata}
        if self.readers:  # without any a repetition is recognised that an earlier release accepted
            fields["readers"] = self.readers
        if self.writers is not None:  # likewise
            fields["writers"] = self.writers
        if self.charset:  # likewise
            fields["charset"] = self.charset
        if self.source:  # likewise
            fields |= {"source": self.source, "sha256": self.sha256}
        return json.dumps(fields, ensure_ascii=False)

    def from_source(self, source: str) -> Self:
        """Return it as one that came from a source. May block."""
        found = hashlib.sha256()
        for block in [self.content] if isinstance(self.content, bytes) else self.content.blocks():
            found.update(block)
        return replace(self, source=source, sha256=found.hexdigest())

    def digest(self) -> bytes:
        """Return the SHA-256 of all that was sent, to recognise a repetition. May block."""
        parts = (self.collection, self.doc_id, self.kind, self.meta)
        head = json.dumps(parts).encode()
        found = hashlib.sha256(head + b"\0")
        content = self.content
        for block in [content] if isinstance(content, bytes) else content.blocks():
            found.update(block)
        return found.digest()


@dataclass(frozen=True)
class StoredJob:
    """A job as its rows make it, and what is told of it to who may read its documents."""

    job: Job  # without errors, warnings and steps
    errors: list[tuple[str, JobFault]]  # of the first documents that failed, with the collection
    warnings: list[tuple[str, WarnedDocument]]
    ahead: WorkAhead
    pending: bool  # some of its documents are not indexed yet
    writers: str  # of documents that its sender stores
