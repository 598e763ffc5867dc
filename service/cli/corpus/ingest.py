"""`kvstitch ingest`: sends documents, and shows a progress bar until their KV is stored.

    files ── batches ── POST with a key made from their content ── jobs ── polled until they end

An interrupted ingest can be repeated: for a batch whose job is still open the service answers with
that job. A batch whose job has ended is sent again, which changes nothing that is stored already.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import httpx
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from service.cli.corpus.batch_upload import Batch, batches, submit
from service.cli.corpus.files import SUFFIXES, DocumentToSend, UnsendableDocument, count, find, read
from service.cli.corpus.job_polling import ended, poll
from service.cli.name_value import parse_pairs
from service.cli.output import console, emit, plain, time_left
from service.cli.service_client import CommandError, client

POLLED_JOBS = 4  # at a time; the service works jobs off in order
MAX_SHOWN_ERRORS = 20  # JSON has all of them


def run(args: argparse.Namespace) -> int:
    """Ingest all documents below the given paths; 1 if any of them is not stored."""
    metadata = parse_pairs(args.metadata, "--metadata")
    sources, others = find(args.paths)
    if not sources:
        raise CommandError(
            f"no documents: {', '.join(args.paths)} hold no {', '.join(SUFFIXES)} files"
        )
    ingest = _Ingest(args, metadata, total=count(sources), others=others)
    with client(args) as http, ingest.bar:
        for batch in batches(ingest.readable(read(sources, metadata)), args.batch):
            ingest.send(http, batch)
        if not args.no_wait:
            try:
                ingest.watch(http)
            except KeyboardInterrupt:
                ingest.say("the jobs go on without this command: `kvstitch jobs` shows them")
                raise
    return ingest.finish()


class _Ingest:
    """Counts what was sent and stored, and shows it as a progress bar."""

    def __init__(
        self, args: argparse.Namespace, metadata: dict[str, Any], *, total: int, others: int
    ) -> None:
        self._given, self._metadata, self._others = args, metadata, others
        self._jobs: dict[str, dict[str, Any]] = {}
        self._resumed = self._shown_errors = 0
        self._errors: list[UnsendableDocument] = []
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

    def readable(
        self, found: Iterable[DocumentToSend | UnsendableDocument]
    ) -> Iterator[DocumentToSend]:
        """Yields the documents that can be sent, and counts the others as failed."""
        for document in found:
            if isinstance(document, UnsendableDocument):
                self._fail(document)
                self.bar.advance(self._sent)
            else:
                yield document

    def send(self, http: httpx.Client, batch: Batch) -> None:
        args = self._given
        done = submit(http, batch, collection=args.collection, metadata=self._metadata)
        for reply in done.jobs:
            self._resumed += reply.resumed
            self._jobs[reply.job["job_id"]] = reply.job
        for refused in done.refused:
            self._fail(refused)
        self.bar.advance(self._sent, len(batch))
        self.bar.update(self._sent, note=plain(batch[-1].doc_id))

    def watch(self, http: httpx.Client) -> None:
        """Wait until every job has ended."""
        self.bar.start_task(self._stored)
        while True:
            self._update_bar()
            still = [job_id for job_id, job in self._jobs.items() if not ended(job)]
            if not still:
                return
            for job in poll(http, still[:POLLED_JOBS]):
                known = len(self._jobs[job["job_id"]]["errors"])
                for error in job["errors"][known:]:
                    self._show_error(error["doc_id"], error["message"])
                self._jobs[job["job_id"]] = job

    def finish(self) -> int:
        """Print the result; 1 if any document is not stored."""
        jobs = list(self._jobs.values())
        errors = [{"doc_id": e.doc_id, "message": e.message} for e in self._errors]
        errors += [error for job in jobs for error in job["errors"]]
        parts: Counter[str] = Counter()
        changes: Counter[str] = Counter()
        for job in jobs:
            parts.update(job["progress"])
            changes.update(job["changes"])
        failed = len(self._errors) + parts["failed"]
        result = {
            "documents": len(self._errors) + parts["total"],
            "stored": parts["done"],
            "failed": failed,
            "cancelled": parts["cancelled"],
            "chunks": sum(job["chunks"] for job in jobs),
            "changes": dict(changes),
            "jobs": list(self._jobs),
            "resumed_jobs": self._resumed,
            "errors": errors,
        }
        if self._given.json:
            emit(result)
        elif self._given.no_wait:
            print("\n".join(self._jobs))
        else:
            self._summary(result)
        return 1 if failed or parts["cancelled"] else 0

    def _summary(self, result: dict[str, Any]) -> None:
        line = f"{result['stored']} documents in {result['chunks']} chunks"
        line += f", {result['failed']} failed"
        if result["cancelled"]:
            line += f", {result['cancelled']} cancelled"
        if changes := ", ".join(f"{n} {name}" for name, n in result["changes"].items() if n):
            line += f" ({changes})"
        print(line)
        if self._resumed:
            self.say(f"{self._resumed} jobs were under way already and were not sent again")
        if self._others:
            self.say(f"{self._others} files of other kinds were left out")
        shown = min(len(result["errors"]), MAX_SHOWN_ERRORS)
        if result["failed"] > shown:
            self.say(f"{result['failed'] - shown} more failed: --json lists them")

    def _update_bar(self) -> None:
        counts = [job["progress"] for job in self._jobs.values()]
        failed = len(self._errors) + sum(c["failed"] for c in counts)
        done = sum(c["done"] + c["failed"] + c["cancelled"] for c in counts) + len(self._errors)
        # Jobs are worked off in order: the last one's time is that of all.
        eta = max((job.get("eta_s") or 0.0 for job in self._jobs.values()), default=0.0)
        notes = [f"{failed} failed" if failed else "", time_left(eta or None)]
        self.bar.update(self._stored, completed=done, note=", ".join(filter(None, notes)))

    def _fail(self, document: UnsendableDocument) -> None:
        self._errors.append(document)
        self._show_error(document.doc_id, document.message)

    def _show_error(self, doc_id: str, message: str) -> None:
        self._shown_errors += 1
        if self._shown_errors <= MAX_SHOWN_ERRORS:
            self.say(f"  {doc_id}: {message}")
