"""One ingest: documents are sent in batches, each once, and their jobs watched until they end.

    documents ── batches ── POST with a key made from their content ── jobs ── polled until they end

For a batch whose job is still open the service answers with that job, so an ingest that was cut off
can be repeated. A batch whose job has ended is sent again, which changes nothing that is stored.
"""

import argparse
import contextlib
import hashlib
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import TaskID

from kvstitch.client import Client, Job, errors
from kvstitch.service.cli.documents.account import Account, Forecast, forecast, sentence
from kvstitch.service.cli.documents.folder_sync import FolderSync, source_name
from kvstitch.service.cli.documents.sources import (
    HIDDEN,
    ROW,
    DocumentToSend,
    Read,
    SkippedFile,
    SourceFile,
    UnsendableDocument,
    count,
)
from kvstitch.service.cli.options import message_of, patiently
from kvstitch.service.cli.output import emit, job_left, plain, progress_bars
from kvstitch.service.settings.fields import parts

BATCH_BYTES = 32 * 1024 * 1024
_DOCUMENT_FAULTS = (400, 413, 422)  # statuses that a single document may have caused
# Fields that concern the whole batch.
_BATCH_FIELDS = ("collection", "metadata", "readers", "writers", "Idempotency-Key")
POLL_S = 0.25
TOLD_S = 60.0  # between two lines of how far it is, where there is no bar
_WITHOUT_NUMBERS = re.compile(r"[\d.]+")  # that change while the reason is the same
POLLED_JOBS = 4  # at a time; the service works jobs off in order
MAX_ERRORS = 10_000  # documents of one call
AWAY_S = 120.0  # how long to wait for a service that is being restarted; it resumes its jobs

Batch = Sequence[DocumentToSend]


class Ingest:
    """Sends documents, waits for their jobs, and shows both as progress bars."""

    def __init__(self, args: argparse.Namespace, metadata: dict[str, Any], *, total: int) -> None:
        self._given, self._metadata = args, metadata
        self._readers, self._writers = parts(args.readers), parts(args.writers)
        self._began = time.time()
        self.account = Account()
        self.changes: dict[str, int] = {}  # documents renamed, pruned or gone
        self._forecast: Forecast | None = None
        self._told = ("", "", 0.0)  # what it waits for, the phase, and when that was said
        self._hidden: set[str] = set()
        self._said: dict[str, set[str]] = {}  # of each job
        self.bar = progress_bars(as_json=args.json)
        self._sent: TaskID = self.bar.add_task("sent  ", total=total, note="")
        self._stored: TaskID = self.bar.add_task("stored", total=total, note="", start=False)

    def say(self, text: str) -> None:
        if not self._given.json:
            self.bar.console.print(plain(text), soft_wrap=True)

    def foretell(self, client: Client, sources: Sequence[SourceFile]) -> None:
        """Say what files will take, as far as it is known, and the key may look."""
        same: set[Path] = set()
        with contextlib.suppress(errors.ServiceError):
            for root in {source.root for source in sources}:
                same |= FolderSync(self._given, client, root).unchanged(sources)
        with contextlib.suppress(errors.Forbidden):
            self._forecast = forecast(sources, count(sources), client.status(), same)
        for line in () if self._forecast is None else self._forecast.lines():
            self.say(line)

    def skip(self, file: SkippedFile) -> None:
        """Name a file that is no document; of a hidden folder only the folder."""
        self.account.found += 1
        self.account.skipped.append(file)
        if file.reason != HIDDEN:
            self.say(f"  {file.path}: skipped, {file.reason} {file.detail}".rstrip())
        elif file.detail not in self._hidden:
            self._hidden.add(file.detail)
            self.say(f"  {file.detail}: skipped with all that is in it, a hidden folder")

    def fail(self, document: UnsendableDocument) -> None:
        self.account.found += 1
        self.bar.advance(self._sent)
        self._refuse(document)

    def _refuse(self, document: UnsendableDocument) -> None:
        self.account.failed.append(document)
        self.say(f"  {document.doc_id}: {document.message}")

    def send_all(self, client: Client, documents: Iterable[Read]) -> None:
        for batch in batches(self._sendable(documents), self._given.batch):
            self._send(client, batch)
            self.bar.advance(self._sent, len(batch))
            self.bar.update(self._sent, note=plain(batch[-1].doc_id))

    def _sendable(self, documents: Iterable[Read]) -> Iterator[DocumentToSend]:
        for document in documents:
            if isinstance(document, UnsendableDocument):
                self.fail(document)
            elif isinstance(document, SkippedFile):
                self.skip(document)
            else:
                self.account.found += 1
                yield document

    def _send(self, client: Client, batch: Batch) -> None:
        """Send a batch; one that is refused for a document is halved until that one is found."""
        try:
            job = submit(
                client, batch, collection=self._given.collection,
                metadata=self._metadata, readers=self._readers, writers=self._writers,
                source=source_name(self._given, batch[0].root), on_wait=self._say_why,
            )  # fmt: skip
        except errors.KvstitchError as error:
            if error.status not in _DOCUMENT_FAULTS or error.field in _BATCH_FIELDS:
                raise
            if len(batch) > 1:
                middle = len(batch) // 2
                self._send(client, batch[:middle])
                self._send(client, batch[middle:])
            else:
                doc_id, reason = batch[0].doc_id, "refused by the service"
                self._refuse(UnsendableDocument(doc_id, message_of(error), reason))
        else:
            self._note(client, job)

    def watch(self, client: Client) -> None:
        jobs = self.account.jobs
        self.bar.start_task(self._stored)
        while True:
            still = [job for job in jobs.values() if not job.ended]
            self._update_bar(still)
            if not still:
                return
            self._tell(still[0], still[-1])
            for job in poll(client, [job.job_id for job in still[:POLLED_JOBS]], self._say_why):
                self._note(client, job)

    def _tell(self, first: Job, last: Job) -> None:
        """Say what the first open job waits for, and how far all are: what no bar shows, or a file
        that nobody looks at before it is long."""
        waiting, phase, said_at = self._told
        now = time.monotonic()
        if (why := _WITHOUT_NUMBERS.sub("", first.waiting or "")) != waiting:
            self.say(f"waits: {first.waiting}" if first.waiting else "goes on")
        due = not self.bar.console.is_terminal and now - said_at >= TOLD_S
        if first.phase and last.eta_s is not None and (first.phase != phase or due):
            done = self.account.count("done", "failed", "cancelled")
            total = self.account.count("total")
            self.say(f"{job_left(replace(last, phase=first.phase))}: {done} of {total} stored")
            phase, said_at = first.phase, now
        self._told = why, phase, said_at

    def _say_why(self, why: str) -> None:
        """Say why a call is repeated, once while that lasts."""
        if (reason := _WITHOUT_NUMBERS.sub("", why)) != self._told[0]:
            self._told = reason, *self._told[1:]
            self.say(f"waits: {why}")

    def _note(self, client: Client, job: Job) -> None:
        """Take over a job's state, and name what is new in it; the first one may hold some."""
        more = job.progress.failed > len(job.errors) or job.warned > len(job.warnings)
        if job.ended and more:
            job = client.get_job(job.job_id, errors=MAX_ERRORS)
        lines = [f"  {error.doc_id}: {error.message}" for error in job.errors]
        lines += [
            f"  {one.doc_id}: stored, but {warning.message}"
            for one in job.warnings
            for warning in one.warnings
        ]
        said = self._said.setdefault(job.job_id, set())
        for line in lines:
            if line not in said:  # they come in the documents' order, not as they happen
                said.add(line)
                self.say(line)
        self.account.jobs[job.job_id] = job

    def finish(self) -> int:
        """Print the account; 1 if any document is not stored."""
        result = self.account.result(waited=not self._given.no_wait)
        jobs = self.account.jobs.values()
        result["resumed_jobs"] = sum(job.created < self._began - 1.0 for job in jobs)
        result |= self.changes
        result["forecast"] = None if self._forecast is None else asdict(self._forecast)
        if self._given.json:
            emit(result)
        elif self._given.no_wait:
            print("\n".join(self.account.jobs))
            self.say(sentence(result))
        else:
            self._summary(result)
        return 1 if result["failed"] or result["cancelled"] else 0

    def _summary(self, result: dict[str, Any]) -> None:
        line = f"{result['stored']} documents in {result['chunks']} chunks"
        line += f", {result['failed']} failed"
        if result["cancelled"]:
            line += f", {result['cancelled']} cancelled"
        if changes := ", ".join(f"{n} {name}" for name, n in result["changes"].items() if n):
            line += f" ({changes})"
        print(line)
        print(sentence(result))
        if renamed := result.get("renamed"):
            print(f"{renamed} documents have another name now; their KV stayed")
        if pruned := result.get("pruned"):
            owed = result.get("owed_chunks")
            print(
                f"{pruned} documents removed that are no longer in this folder"
                + (f"; KV of {owed} chunks is deleted as soon as its tier answers" if owed else "")
            )
        if gone := result.get("gone"):
            print(f"{gone} stored documents are no longer in this folder: --prune removes them")
        if resumed := result["resumed_jobs"]:
            self.say(f"{resumed} jobs were under way already and were not sent again")

    def _update_bar(self, still: Sequence[Job]) -> None:
        account = self.account
        # Jobs are worked off in order: the last one's time is that of all.
        left = job_left(replace(still[-1], phase=still[0].phase)) if still else ""
        unsent, failed = len(account.failed), account.count("failed")
        notes = [f"{unsent + failed} failed" if unsent + failed else "", left]
        self.bar.update(
            self._stored,
            completed=unsent + account.count("done", "failed", "cancelled"),
            note=", ".join(filter(None, notes)),
        )


def batches(documents: Iterable[DocumentToSend], most: int) -> Iterator[Batch]:
    """Yield batches: all files or all lines of a folder, at most `most` documents, about 32 MiB."""
    waiting: defaultdict[tuple[bool, Path], list[DocumentToSend]] = defaultdict(list)
    sizes: defaultdict[tuple[bool, Path], int] = defaultdict(int)
    for document in documents:
        kind = document.media_type == ROW, document.root
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
    writers: Sequence[str] = (),
    source: str | None = None,
    on_wait: Callable[[str], None] = lambda why: None,
) -> Job:
    """Return the job of a batch, which may be under way already."""

    def send(key: str | None) -> Job:
        given: Any = {"collection": collection, "readers": readers, "writers": writers,
                      "source": source, "idempotency_key": key}  # fmt: skip
        if batch[0].media_type == ROW:
            return client.precompute_lines([document.content for document in batch], **given)
        files = [(document.doc_id, document.content, document.media_type) for document in batch]
        return client.precompute_files(files, metadata=metadata or None, **given)

    of_all = [collection, metadata, *([sorted(readers)] if readers else []), source]
    of_all += [sorted(writers)] if writers else []
    digest = hashlib.sha256(json.dumps(of_all, sort_keys=True).encode())
    for document in batch:
        head = json.dumps([document.doc_id, document.media_type, len(document.content)])
        digest.update(head.encode() + document.content)
    job = patiently(lambda: send(f"ingest-{digest.hexdigest()}"), on_wait)
    # What was sent before and has ended may have been changed or deleted since.
    return patiently(lambda: send(None), on_wait) if job.ended else job


def poll(
    client: Client, job_ids: Iterable[str], on_wait: Callable[[str], None] = lambda why: None
) -> Iterator[Job]:
    """Yield these jobs as they are now, after a pause."""
    time.sleep(POLL_S)
    for job_id in job_ids:
        get = partial(client.get_job, job_id)
        yield patiently(get, on_wait, passes=_is_away, patience_s=AWAY_S)


def _is_away(error: errors.KvstitchError) -> bool:
    return isinstance(error, errors.ConnectionFailed) or error.status == 503
