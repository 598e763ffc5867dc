"""Sends documents in batches, each once, even if the command is interrupted and repeated."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from service.cli.corpus.files import ROW, DocumentToSend
from service.cli.corpus.folder_scan import UnsendableDocument
from service.cli.corpus.job_polling import ended
from service.cli.service_client import CommandError, checked, error_of

BATCH_BYTES = 32 * 1024 * 1024
BUSY_TIMEOUT_S = 300.0  # how long a busy service is asked again
REFUSED = "refused by the service"
_DOCUMENT_FAULTS = (400, 413, 422)  # statuses that a single document may have caused
# Fields that concern the whole batch.
_BATCH_FIELDS = ("collection", "metadata", "Idempotency-Key")

Batch = list[DocumentToSend]


@dataclass(frozen=True)
class Reply:
    """A job; `resumed` if an earlier ingest had started it."""

    job: dict[str, Any]
    resumed: bool


@dataclass
class Submitted:
    """The jobs of a batch, and the documents that the service refused."""

    jobs: list[Reply] = field(default_factory=list)
    refused: list[UnsendableDocument] = field(default_factory=list)


def batches(documents: Iterable[DocumentToSend], most: int) -> Iterator[Batch]:
    """Yields batches: all files or all lines, at most `most` documents, about 32 MiB."""
    waiting: dict[bool, Batch] = {True: [], False: []}
    sizes = {True: 0, False: 0}
    for document in documents:
        kind = document.media_type == ROW
        waiting[kind].append(document)
        sizes[kind] += len(document.content)
        if len(waiting[kind]) >= most or sizes[kind] >= BATCH_BYTES:
            yield waiting[kind]
            waiting[kind], sizes[kind] = [], 0
    yield from (batch for batch in waiting.values() if batch)


def submit(
    http: httpx.Client, batch: Batch, *, collection: str | None, metadata: dict[str, Any]
) -> Submitted:
    """Send a batch.

    If it is refused and a single document may be the reason, its halves are sent instead, so that
    only that document stays out.

    Raises:
        CommandError: It is refused for another reason.
    """
    done = Submitted()
    started = [batch]
    while started:
        part = started.pop(0)
        try:
            done.jobs.append(_once(http, part, collection, metadata))
        except CommandError as error:
            if error.http_status not in _DOCUMENT_FAULTS or error.field in _BATCH_FIELDS:
                raise
            if len(part) == 1:
                refused = UnsendableDocument(part[0].doc_id, error.message, REFUSED)
                done.refused.append(refused)
            else:
                middle = len(part) // 2
                started[:0] = [part[:middle], part[middle:]]
    return done


def _once(
    http: httpx.Client, batch: Batch, collection: str | None, metadata: dict[str, Any]
) -> Reply:
    key = _key(batch, collection, metadata)
    began = time.time()
    job = _post_patiently(http, batch, collection, metadata, key)
    if ended(job):
        # It was sent before and has ended. Documents may have been changed or deleted since.
        return Reply(_post_patiently(http, batch, collection, metadata, None), False)
    return Reply(job, job["created"] < began - 1.0)


def _post_patiently(
    http: httpx.Client,
    batch: Batch,
    collection: str | None,
    metadata: dict[str, Any],
    key: str | None,
) -> dict[str, Any]:
    """The job. A busy service is asked again for a while."""
    give_up_at = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        response = _post(http, batch, collection, metadata, key)
        if not response.is_error:
            job: dict[str, Any] = checked(response)
            return job
        error = error_of(response)
        wait_s = min(error.retry_after_s or 1.0, 30.0)
        if not _is_temporary(error) or time.monotonic() + wait_s > give_up_at:
            raise error
        time.sleep(wait_s)


def _is_temporary(error: CommandError) -> bool:
    """Whether waiting helps: too busy, too fast, or the same batch is just being received."""
    if error.http_status == 429:
        return bool(error.field and error.field.endswith("_per_minute"))
    return error.http_status in (409, 503)


def _post(
    http: httpx.Client,
    batch: Batch,
    collection: str | None,
    metadata: dict[str, Any],
    key: str | None,
) -> httpx.Response:
    query = {"collection": collection} if collection else {}
    headers = {"Idempotency-Key": key} if key else {}
    if batch[0].media_type == ROW:
        return http.post(
            "/admin/precompute",
            params=query,
            headers={**headers, "Content-Type": ROW},
            content=b"\n".join(document.content for document in batch),
        )
    return http.post(
        "/admin/precompute",
        params=query,
        headers=headers,
        data={"metadata": json.dumps(metadata)} if metadata else {},
        files=[("file", (d.doc_id, d.content, d.media_type)) for d in batch],
    )


def _key(batch: Batch, collection: str | None, metadata: dict[str, Any]) -> str:
    """The idempotency key: a digest of everything that is sent."""
    digest = hashlib.sha256(json.dumps([collection, metadata], sort_keys=True).encode())
    for document in batch:
        head = json.dumps([document.doc_id, document.media_type, len(document.content)])
        digest.update(head.encode() + document.content)
    return f"ingest-{digest.hexdigest()}"
