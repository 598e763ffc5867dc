"""`kvstitch ingest`: sends documents, and shows a progress bar until their KV is stored.

    files ── batches ── POST with a key made from their content ── jobs ── polled until they end

An interrupted ingest can be repeated: for a batch whose job is still open the service answers with
that job. A batch whose job has ended is sent again, which changes nothing that is stored already.
"""

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
from service.cli.documents.files import DocumentToSend, Read, count, read
from service.cli.documents.folder import HIDDEN, SUFFIXES, SkippedFile, UnsendableDocument, scan
from service.cli.documents.upload import Batch, all_errors, batches, poll, submit
from service.cli.documents.web import fetch_all
from service.cli.options import add_client_options, parse_pairs, positive, seconds
from service.cli.output import console, emit, plain, time_left
from service.cli.service_client import CommandError, WrongArgument, client

POLLED_JOBS = 4  # at a time; the service works jobs off in order


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Ingest files, folders and patterns. A document is called by its path below the folder "
        "given; every line of .jsonl is a document of its own."
    )
    parser.epilog = "An ingest that was cut off can be given again: nothing is done twice."
    add = parser.add_argument
    add("paths", nargs="*", metavar="PATH", help=f"{', '.join(SUFFIXES)}, a folder, or a pattern "
        "such as 'docs/**/*.pdf'")  # fmt: skip
    add("--collection", help="put them there (default: default)")
    add("--metadata", action="append", metavar="NAME=VALUE", help="of all of them; or a JSON "
        "object; may be repeated")  # fmt: skip
    add("--batch", type=positive, default=200, help="documents per call (default: 200)")
    add("--no-wait", action="store_true", help="print the jobs and do not wait for the KV")
    add("--urls", metavar="FILE", help="fetch these: a URL per line")
    add("--sitemap", metavar="URL", help="fetch the pages of a sitemap")
    add("--allow-host", action="append", metavar="HOST", help="with --urls, --sitemap: fetch from "
        "there (a sitemap's own host is allowed); may be repeated")  # fmt: skip
    add("--max-urls", type=positive, default=1000, help="pages to fetch (default: 1000)")
    add("--allow-private-addresses", action="store_true", help="fetch also from loopback, private "
        "and link-local addresses")  # fmt: skip
    add("--watch", action="store_true", help="of one folder: go on, and ingest what is new or "
        "changed")  # fmt: skip
    add("--delete-removed", action="store_true", help="with --watch: delete the documents of files "
        "that are removed meanwhile")  # fmt: skip
    add("--interval", type=seconds, default=2.0, metavar="SECONDS", help="with --watch: between "
        "two looks at the folder (default: 2)")  # fmt: skip
    add_client_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Ingest all documents below the given paths; 1 if any of them is not stored."""
    metadata = parse_pairs(args.metadata, "--metadata")
    if args.watch:
        from service.cli.documents import watch  # it ingests by what is in this file

        return watch.run(args, metadata)
    web = args.urls is not None or args.sitemap is not None
    if not args.paths and not web:
        raise WrongArgument("say what to ingest: PATH…, --urls FILE or --sitemap URL")
    found = scan(args.paths)
    ingest = Ingest(args, metadata, total=count(found.sources) + len(found.failed))
    for file in found.skipped:
        ingest.skip(file)
    for document in found.failed:
        ingest.fail(document)
    if not found.sources and not found.failed and not web:
        raise CommandError(
            f"no documents: {', '.join(args.paths)} hold no {', '.join(SUFFIXES)} files"
        )
    with client(args) as service, ingest.bar:
        ingest.send_all(service, read(found.sources, metadata))
        if web:
            ingest.send_all(service, fetch_all(args))
        if not args.no_wait:
            try:
                ingest.watch(service)
            except KeyboardInterrupt:
                ingest.say("the jobs go on without this command: `kvstitch jobs` shows them")
                raise
    return ingest.finish()


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
