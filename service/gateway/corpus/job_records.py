"""What the job store takes and tells: documents on their way, jobs, owed purges. No SQLite."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

OPEN_STATES = ("queued", "running")


@dataclass(frozen=True)
class UploadedDocument:
    """A document as it was sent: UTF-8 text of kind "text" or "md", or a file to be parsed."""

    doc_id: str
    collection: str
    kind: str  # text, md, html or pdf
    content: bytes
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def meta(self) -> str:
        return json.dumps({"title": self.title, "metadata": self.metadata}, ensure_ascii=False)

    def digest(self) -> bytes:
        """Of everything that was sent: equal means sent again."""
        parts = (self.collection, self.doc_id, self.kind, self.meta)
        head = json.dumps(parts).encode()
        return hashlib.sha256(head + b"\0" + self.content).digest()


@dataclass(frozen=True)
class SpooledDocument:
    """A document of a job on its way; `kind` and what follows are None once it is indexed."""

    number: int
    job_id: str
    tenant: str
    collection: str
    doc_id: str
    kind: str | None
    meta: dict[str, Any] | None
    content: bytes | None

    @property
    def name(self) -> tuple[str, str, str]:
        """What it replaces when it is indexed."""
        return self.tenant, self.collection, self.doc_id


@dataclass(frozen=True)
class DocumentError:
    doc_id: str
    message: str


@dataclass(frozen=True)
class Job:
    """`done` counts documents whose KV is stored; `errors` holds the first hundred."""

    job_id: str
    state: str
    created: float
    updated: float
    total: int
    done: int
    failed: int
    cancelled: int
    chunks: int
    changes: dict[str, int]  # created, updated, unchanged
    errors: list[DocumentError]


@dataclass(frozen=True)
class JobPage:
    """Newest first; `next_cursor` is None on the last page."""

    jobs: list[Job]
    next_cursor: str | None


@dataclass(frozen=True)
class PendingPurge:
    """KV of a chunk that is to be deleted once the chunk is gone from the catalog."""

    number: int
    receipt_id: str | None
    tenant: str
    collection: str
    doc_id: str
    chunk_id: int
    ids: list[int]


@dataclass(frozen=True)
class Receipt:
    """What a deletion removed. `kv` counts copies per tier; `owed_chunks` are those whose KV may
    still be in a tier: the worker is away, or `unreached` tiers are."""

    receipt_id: str
    collection: str
    doc_ids: list[str]  # the first hundred
    documents: int
    chunks: int
    kv: dict[str, int]
    owed_chunks: int
    unreached: list[str]
    created: float
    completed: float | None
