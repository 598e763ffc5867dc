"""What routes note about a request, for whoever keeps a record of requests; else it is dropped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.requests import Request
from starlette.types import Scope

from service.gateway.documents.jobs.job_records import IngestDocument

MOST_NAMES: Final = 100  # of documents of one request
QUESTIONS: Final = "questions"  # texts that were asked


def take_notes(scope: Scope) -> dict[str, Any]:
    """Return what gets the notes about this request; a middleware calls it before the route."""
    notes: dict[str, Any] = {}
    scope.setdefault("state", {})["notes"] = notes
    return notes


def notes_of(request: Request) -> dict[str, Any] | None:
    """Return what is noted so far; None: nobody takes notes."""
    notes: dict[str, Any] | None = getattr(request.state, "notes", None)
    return notes


def note(request: Request, **details: Any) -> None:
    if (notes := notes_of(request)) is not None:
        notes |= details


async def noted(
    request: Request, documents: AsyncIterator[IngestDocument]
) -> AsyncIterator[IngestDocument]:
    """Yield documents that come in, and note their names."""
    names: list[str] = []
    count = 0
    note(request, doc_ids=names)
    async for document in documents:
        count += 1
        if len(names) < MOST_NAMES:
            names.append(f"{document.collection}/{document.doc_id}")
        note(request, documents=count)
        yield document
