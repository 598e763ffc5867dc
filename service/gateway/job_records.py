"""What the job store tells about jobs, their documents and owed purges. Knows no SQLite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spooled:
    """A document of a job on its way; `payload` is None once it is indexed."""

    number: int
    job_id: str
    doc_id: str
    payload: dict[str, Any] | None


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
    chunks: int
    changes: dict[str, int]  # created, updated, unchanged
    errors: list[DocumentError]


@dataclass(frozen=True)
class OwedPurge:
    """KV of a chunk that is to be deleted once the chunk is gone from the catalog."""

    number: int
    doc_id: str
    chunk_id: int
    ids: list[int]
