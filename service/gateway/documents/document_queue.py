"""Where the two stages of ingestion read what they are to do, and note what they have done.

    pending ── parse ── cut, embed ── catalog and index ── indexed ── KV stored ── done
                ├── error: failed                              └── the worker died: dead
                └── takes long: beside all others (long_documents.py)
            indexing_stage.py                                  kv_stage.py

It is that of the jobs on disk, or that of a range of a bulk run. The stages' steps are made by
background tasks of the gateway, or by a Ray actor. Every step reads here what is to be done, and
doing it again changes nothing where it was done already: a restart simply continues.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from service.gateway.documents.jobs.job_records import IndexedDocument, IngestDocument


class DocumentQueue(Protocol):
    """Documents on their way in, each with a number; every call may block."""

    def pending(
        self,
        limit: int,
        max_bytes: int,
        *,
        without: Collection[int] = (),
        largest: int | None = None,
    ) -> list[IngestDocument]:
        """Return the next documents to index, oldest first: at least one, if there is one, then up
        to `max_bytes`.
        """
        ...

    def indexed(self, limit: int) -> list[IngestDocument]:
        """Return the next documents whose KV is to be stored, oldest first."""
        ...

    def still_in(self, state: str, numbers: Sequence[int]) -> set[int]:
        """Return those of the documents that are in this state; others may have been cancelled."""
        ...

    def set_indexed(self, documents: Sequence[IndexedDocument]) -> None:
        """Note documents that are in the catalog and the index."""
        ...

    def set_done(self, numbers: Sequence[int]) -> None:
        """Note documents whose KV is stored."""
        ...

    def set_failed(self, documents: Sequence[tuple[int, str]], state: str = "failed") -> None:
        """Note (number, what is wrong); "dead": the worker died of the document."""
        ...
