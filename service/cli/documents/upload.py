"""Sends documents in batches, each once, even if the command is interrupted and repeated.

Then polls the jobs until they end.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvstitch.client import Client, Job, errors
from service.cli.documents.files import ROW, DocumentToSend
from service.cli.documents.folder import UnsendableDocument
from service.cli.service_client import message_of

BATCH_BYTES = 32 * 1024 * 1024
BUSY_TIMEOUT_S = 300.0  # how long a busy service is asked again
REFUSED = "refused by the service"
_DOCUMENT_FAULTS = (400, 413, 422)  # statuses that a single document may have caused
# Fields that concern the whole batch.
_BATCH_FIELDS = ("collection", "metadata", "readers", "Idempotency-Key")

POLL_S = 0.25
MAX_ERRORS = 10_000  # documents of one call
AWAY_S = 120.0  # how long to wait for a service that is being restarted; it resumes its jobs

Batch = list[DocumentToSend]


@dataclass(frozen=True)
class Reply:
    """A job; `resumed` if an earlier ingest had started it."""

    job: Job
    resumed: bool


@dataclass
class Submitted:
    """The jobs of a batch, and the documents that the service refused."""

    jobs: list[Reply] = field(default_factory=list)
    refused: list[UnsendableDocument] = field(default_factory=list)


def batches(documents: Iterable[DocumentToSend], most: int) -> Iterator[Batch]:
    """Yield batches: all files or all lines, at most `most` documents, about 32 MiB."""
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
    client: Client,
    batch: Batch,
    *,
    collection: str | None,
    metadata: dict[str, Any],
    readers: Sequence[str] = (),
) -> Submitted:
    """Send a batch."""
    done = Submitted()
    started = [batch]
    while started:
        part = started.pop(0)
        try:
            done.jobs.append(_once(client, part, collection, metadata, readers))
        except errors.KvstitchError as error:
            if error.status not in _DOCUMENT_FAULTS or error.field in _BATCH_FIELDS:
                raise
            if len(part) == 1:
                refused = UnsendableDocument(part[0].doc_id, message_of(error), REFUSED)
                done.refused.append(refused)
            else:
                middle = len(part) // 2
                started[:0] = [part[:middle], part[middle:]]
    return done


def _once(
    client: Client,
    batch: Batch,
    collection: str | None,
    metadata: dict[str, Any],
    readers: Sequence[str],
) -> Reply:
    def send(key: str | None) -> Job:
        if batch[0].media_type == ROW:
            lines = [document.content for document in batch]
            return client.precompute_lines(
                lines, collection=collection, readers=readers, idempotency_key=key
            )
        return client.precompute_files(
            [(document.doc_id, document.content, document.media_type) for document in batch],
            collection=collection,
            metadata=metadata or None,
            readers=readers,
            idempotency_key=key,
        )

    key, began = _key(batch, collection, metadata, readers), time.time()
    job = _patiently(lambda: send(key))
    if job.ended:
        # It was sent before and has ended. Documents may have been changed or deleted since.
        return Reply(_patiently(lambda: send(None)), False)
    return Reply(job, job.created < began - 1.0)


def _patiently(send: Callable[[], Job]) -> Job:
    """Return the job of a call that is repeated for a while if the service is busy."""
    give_up_at = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            return send()
        except errors.KvstitchError as error:
            wait_s = min(error.retry_after or 1.0, 30.0)
            if not _is_temporary(error) or time.monotonic() + wait_s > give_up_at:
                raise
        time.sleep(wait_s)


def _is_temporary(error: errors.KvstitchError) -> bool:
    """Whether waiting helps: too busy, too fast, or the same batch is just being received."""
    if error.status == 429:
        return bool(error.field and error.field.endswith("_per_minute"))
    return error.status in (409, 503)


def _key(
    batch: Batch, collection: str | None, metadata: dict[str, Any], readers: Sequence[str]
) -> str:
    """Return the idempotency key: a digest of everything that is sent."""
    of_all = [collection, metadata, *([sorted(readers)] if readers else [])]
    digest = hashlib.sha256(json.dumps(of_all, sort_keys=True).encode())
    for document in batch:
        head = json.dumps([document.doc_id, document.media_type, len(document.content)])
        digest.update(head.encode() + document.content)
    return f"ingest-{digest.hexdigest()}"


def poll(client: Client, job_ids: Iterable[str]) -> Iterator[Job]:
    """Yield these jobs as they are now, after a pause."""
    time.sleep(POLL_S)
    for job_id in job_ids:
        give_up_at = time.monotonic() + AWAY_S
        while True:
            try:
                yield client.get_job(job_id)
                break
            except errors.KvstitchError as error:
                away = isinstance(error, errors.ConnectionFailed) or error.status == 503
                if not away or time.monotonic() > give_up_at:
                    raise
            time.sleep(1.0)


def all_errors(client: Client, job: Job) -> Job:
    """Return a job with errors and warnings of all its documents, once it has ended."""
    whole = job.progress.failed <= len(job.errors) and job.warned <= len(job.warnings)
    if not job.ended or whole:
        return job
    return client.get_job(job.job_id, errors=MAX_ERRORS)
