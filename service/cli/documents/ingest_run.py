"""One ingest: documents are sent in batches, and their jobs watched until they end."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from kvstitch.client import Client
from service.cli.documents.account import Account, sentence
from service.cli.documents.files import DocumentToSend, Read
from service.cli.documents.folder import HIDDEN, SkippedFile, UnsendableDocument
from service.cli.documents.upload import Batch, all_errors, batches, poll, submit
from service.cli.output import console, emit, plain, time_left

POLLED_JOBS = 4  # at a time; the service works jobs off in order


class Ingest:
    """Sends documents, waits for their jobs, and shows both as progress bars."""

    def __init__(self, args: argparse.Namespace, metadata: dict[str, Any], *, total: int) -> None:
        self._given, self._metadata = args, metadata
        self.account = Account()
        self._resumed = 0
        self._hidden: set[str] = set()
        stderr = console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=stderr,
            disable=args.json or not stderr.is_terminal,
        )
        self._sent: TaskID = self.bar.add_task("sent  ", total=total, note="")
        self._stored: TaskID = self.bar.add_task("stored", total=total, note="", start=False)

    def say(self, text: str) -> None:
        if not self._given.json:
            self.bar.console.print(plain(text), soft_wrap=True)

    def skip(self, file: SkippedFile) -> None:
        """Name a file that is no document; of a hidden folder only the folder."""
        self.account.skip(file)
        if file.reason != HIDDEN:
            self.say(f"  {file.path}: skipped, {file.reason} {file.detail}".rstrip())
        elif file.detail not in self._hidden:
            self._hidden.add(file.detail)
            self.say(f"  {file.detail}: skipped with all that is in it, a hidden folder")

    def fail(self, document: UnsendableDocument, *, found: bool = False) -> None:
        self.account.fail(document, found=found)
        self.bar.advance(self._sent, not found)
        self.say(f"  {document.doc_id}: {document.message}")

    def send_all(self, client: Client, documents: Iterable[Read]) -> None:
        """Send everything that can be sent, in batches."""
        for batch in batches(self._sendable(documents), self._given.batch):
            self._send(client, batch)

    def _sendable(self, documents: Iterable[Read]) -> Iterator[DocumentToSend]:
        for document in documents:
            if isinstance(document, UnsendableDocument):
                self.fail(document)
            elif isinstance(document, SkippedFile):
                self.skip(document)
            else:
                self.account.found()
                yield document

    def _send(self, client: Client, batch: Batch) -> None:
        args = self._given
        done = submit(client, batch, collection=args.collection, metadata=self._metadata)
        for reply in done.jobs:
            self._resumed += reply.resumed
            self.account.jobs[reply.job.job_id] = reply.job
        for refused in done.refused:
            self.fail(refused, found=True)
        self.bar.advance(self._sent, len(batch))
        self.bar.update(self._sent, note=plain(batch[-1].doc_id))

    def watch(self, client: Client) -> None:
        """Wait until every job has ended."""
        jobs = self.account.jobs
        self.bar.start_task(self._stored)
        while True:
            self._update_bar()
            still = [job_id for job_id, job in jobs.items() if not job.ended]
            if not still:
                return
            for job in poll(client, still[:POLLED_JOBS]):
                job = all_errors(client, job)
                for error in job.errors[len(jobs[job.job_id].errors) :]:
                    self.say(f"  {error.doc_id}: {error.message}")
                jobs[job.job_id] = job

    def finish(self) -> int:
        """Print the account; 1 if any document is not stored."""
        result = self.account.result(waited=not self._given.no_wait)
        result["resumed_jobs"] = self._resumed
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
        if self._resumed:
            self.say(f"{self._resumed} jobs were under way already and were not sent again")

    def _update_bar(self) -> None:
        account = self.account
        # Jobs are worked off in order: the last one's time is that of all.
        eta = max((job.eta_s or 0.0 for job in account.jobs.values()), default=0.0)
        notes = [f"{account.failed} failed" if account.failed else "", time_left(eta or None)]
        note = ", ".join(filter(None, notes))
        self.bar.update(self._stored, completed=account.ended, note=note)
