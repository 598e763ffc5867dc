"""Documents on their way in and their jobs, as the job store takes and returns them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from encryption.errors import EncryptionError
from encryption.keyring import Keyring
from encryption.sealed_files import opened_blocks
from encryption.values import place
from retriever import Scope
from retriever.readers import EVERYBODY, EVERYTHING, View
from service.gateway.encryption.sealed_rows import locked

OPEN_STATES = ("queued", "running")
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class SpooledFile:
    """Content that is too long for the database.

    Attributes:
        path: The file; its name in the spool folder is what the database keeps.
        size: Its bytes.
        start: The first of them, which tell its kind; b"" once that is known.
        keys: The file is sealed under one of these; None: it is in the clear.
    """

    path: Path
    size: int
    start: bytes = b""
    keys: Keyring | None = field(default=None, compare=False, repr=False)

    def blocks(self) -> Iterator[bytes]:
        """Yield the content.

        Raises:
            KeyDeleted: It cannot be decrypted.
        """
        with self.path.open("rb") as file:
            if self.keys is not None:
                try:
                    yield from opened_blocks(self.keys, file, spool_place(self.path.name))
                except EncryptionError as error:
                    raise locked(error) from error
                return
            while block := file.read(BLOCK_BYTES):
                yield block

    def read(self) -> bytes:
        """Return the content. Raises as `blocks`."""
        return b"".join(self.blocks())


def spool_place(name: str) -> bytes:
    """Return where a file is sealed for."""
    return place("spool", name)


@dataclass(frozen=True)
class IngestDocument:
    """A document on its way in, from the moment it is sent until its KV is stored.

    Attributes:
        doc_id: Its name within the collection.
        collection: Where it goes.
        kind: See parsing/file_kinds.py; "" once it is indexed, when kind, content, title and
            metadata are kept no longer.
        content: UTF-8 text for text, md and rst, else the bytes of the file.
        title: May be empty.
        metadata: Any JSON object.
        tenant: Whose it is.
        number: Of the document among all that were accepted; 0 before.
        job_id: Of its job.
        chunks: 0 until it is indexed.
        charset: That the sender names, for files of text; may be empty, wrong or unknown.
        readers: The groups that may read it (retriever/readers.py).
        view: What its sender may read: a document that they may not read is not replaced.
    """

    doc_id: str
    collection: str
    kind: str
    content: bytes | SpooledFile
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    tenant: str = ""
    number: int = 0
    job_id: str = ""
    chunks: int = 0
    readers: str = EVERYBODY
    warnings: str = "[]"
    charset: str = ""
    view: View = EVERYTHING

    @property
    def scope(self) -> Scope:
        """Where it goes, as its sender sees it."""
        return Scope(self.tenant, self.collection, self.view)

    @property
    def key(self) -> tuple[str, str, str]:
        """(tenant, collection, doc_id): what it replaces when it is indexed."""
        return self.tenant, self.collection, self.doc_id

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.size

    @property
    def meta(self) -> str:
        """Title, metadata, readers and charset as JSON, under the names of their fields."""
        fields: dict[str, Any] = {"title": self.title, "metadata": self.metadata}
        if self.readers:  # without any a repetition is recognised that an earlier release accepted
            fields["readers"] = self.readers
        if self.charset:  # likewise
            fields["charset"] = self.charset
        return json.dumps(fields, ensure_ascii=False)

    def digest(self) -> bytes:
        """Return the SHA-256 of all that was sent, to recognise a repetition. May block."""
        parts = (self.collection, self.doc_id, self.kind, self.meta)
        head = json.dumps(parts).encode()
        found = hashlib.sha256(head + b"\0")
        content = self.content
        for block in [content] if isinstance(content, bytes) else content.blocks():
            found.update(block)
        return found.digest()


class IndexedDocument(NamedTuple):
    """A document that is in the catalog and the index.

    Attributes:
        number: Of the IngestDocument.
        change: created, updated or unchanged.
        chunks: How many it has.
        tokens: Of its chunks.
        warnings: What is not in its text, or may be wrong there: JSON of ParseWarnings.
    """

    number: int
    change: str
    chunks: int
    tokens: int
    warnings: str = "[]"


@dataclass(frozen=True)
class DocumentError:
    doc_id: str
    message: str
    collection: str


@dataclass(frozen=True)
class Step:
    """A document that takes long, and how far it is.

    Attributes:
        doc_id: The document.
        step: waiting, reading or embedding.
        done: Chunks that are embedded.
        total: All of them; 0: not known yet.
        eta_s: Seconds until it is embedded; None if that is not known.
    """

    doc_id: str
    step: str
    done: int
    total: int
    eta_s: float | None
    collection: str


@dataclass(frozen=True)
class DocumentWarnings:
    """What of a document is not in its text, or may be wrong there: fields of ParseWarnings."""

    doc_id: str
    warnings: list[dict[str, Any]]
    collection: str


@dataclass(frozen=True)
class Job:
    """The state of an ingest job.

    Attributes:
        job_id: Its id.
        state: queued, running, succeeded, failed, cancelled or dead.
        created: When it was accepted, in Unix seconds.
        updated: When its state last changed, in Unix seconds.
        total: Its documents.
        done: Documents whose KV is stored.
        failed: Documents that failed.
        cancelled: Documents that were cancelled.
        chunks: Chunks of its documents.
        changes: Documents that were created, updated or unchanged.
        errors: Of the first hundred documents that failed.
        warnings: Of the first hundred documents that are stored, but not all of them.
        warned: How many these are.
        tokens_ahead: Tokens of its documents that are not done, and of those of earlier jobs, which
            come first; of documents that are not indexed yet they are estimated.
        eta_s: Seconds until it ends; None if it has ended, or if that is not known.
        steps: Of its documents that take long, those that are not indexed yet.
        waits_for: What comes before its documents; None: nothing does, or it is not known.
        readers: Of its documents when they were sent, each once.
    """

    job_id: str
    state: str
    created: float
    updated: float
    total: int
    done: int
    failed: int
    cancelled: int
    chunks: int
    changes: dict[str, int]
    errors: list[DocumentError]
    warnings: list[DocumentWarnings]
    warned: int = 0
    tokens_ahead: int = 0
    eta_s: float | None = None
    steps: list[Step] = field(default_factory=list)
    waits_for: str | None = None
    readers: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class JobPage:
    """Jobs, newest first; `next_cursor` is None on the last page."""

    jobs: list[Job]
    next_cursor: str | None
