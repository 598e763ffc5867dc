"""Documents to the service in batches, each once, whatever is cut off between. Prints nothing."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from service.cli.corpus.files import ROW, DocumentToSend, UnsendableDocument
from service.cli.corpus.job_polling import ended
from service.cli.service_client import CommandError, checked, error_of

BATCH_BYTES = 32 * 1024 * 1024
PATIENCE_S = 300.0  # how long a service that is busy is asked again
_BLAMED = (400, 413, 422)  # answers that may be one document's fault
_EVERYBODY = ("collection", "metadata", "Idempotency-Key")

Batch = list[DocumentToSend]


@dataclass(frozen=True)
class Reply:
    """A job; `resumed` if it was under way before."""

    job: dict[str, Any]
    resumed: bool


@dataclass
class Submitted:
    """The jobs of a batch, and documents that the service would not take."""

    jobs: list[Reply] = field(default_factory=list)
    refused: list[UnsendableDocument] = field(default_factory=list)


def batches(documents: Iterable[DocumentToSend], most: int) -> Iterator[Batch]:
    """Documents that go together: of one kind, at most `most`, of some 32 MiB."""
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
    """Hand a batch in. If it is refused for what may be one document's fault its halves are tried,
    so that only that one stays out. Raises Refused for what is not."""
    done = Submitted()
    started = [batch]
    while started:
        part = started.pop(0)
        try:
            done.jobs.append(_once(http, part, collection, metadata))
        except CommandError as error:
            if error.http_status not in _BLAMED or error.field in _EVERYBODY:
                raise
            if len(part) == 1:
                done.refused.append(UnsendableDocument(part[0].doc_id, error.message))
            else:
                middle = len(part) // 2
                started[:0] = [part[:middle], part[middle:]]
    return done


def _once(
    http: httpx.Client, batch: Batch, collection: str | None, metadata: dict[str, Any]
) -> Reply:
    key = _key(batch, collection, metadata)
    began = time.time()
    job = _patiently(http, batch, collection, metadata, key)
    if ended(job):
        # Sent before and done with. Documents may have been changed or deleted since then.
        return Reply(_patiently(http, batch, collection, metadata, None), False)
    return Reply(job, job["created"] < began - 1.0)


def _patiently(
    http: httpx.Client,
    batch: Batch,
    collection: str | None,
    metadata: dict[str, Any],
    key: str | None,
) -> dict[str, Any]:
    """The job; a service that is busy is asked again for a while."""
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        response = _post(http, batch, collection, metadata, key)
        if not response.is_error:
            job: dict[str, Any] = checked(response)
            return job
        error = error_of(response)
        wait_s = min(error.retry_after_s or 1.0, 30.0)
        if not _passes(error) or time.monotonic() + wait_s > give_up_at:
            raise error
        time.sleep(wait_s)


def _passes(error: CommandError) -> bool:
    """Whether waiting helps: too busy, too fast, or the same batch is being received just now."""
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
    """Of everything that is sent."""
    digest = hashlib.sha256(json.dumps([collection, metadata], sort_keys=True).encode())
    for document in batch:
        head = json.dumps([document.doc_id, document.media_type, len(document.content)])
        digest.update(head.encode() + document.content)
    return f"ingest-{digest.hexdigest()}"
