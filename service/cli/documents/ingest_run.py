"""One ingest: documents are sent in batches, and their jobs watched until they end.

The account says what became of every file, and must add up:

    found = ingested + unchanged + skipped + failed (+ cancelled, + sent, if nobody waits)
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.progress import TaskID

from kvstitch.client import Client, Job, errors
from service.cli.documents.files import DocumentToSend, Read, count
from service.cli.documents.folder import HIDDEN, SkippedFile, SourceFile, UnsendableDocument
from service.cli.documents.forecast import Forecast, forecast
from service.cli.documents.upload import Batch, all_errors, batches, poll, submit
from service.cli.output import emit, plain, progress_bars, time_left
from service.cli.service_client import CommandError

POLLED_JOBS = 4  # at a time; the service works jobs off in order
_FIRST_WORDS = re.compile(r"[^:(]*")


class Account:
    """Counts documents as they are found, sent, refused and stored."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._found = 0
        self._skipped: list[SkippedFile] = []
        self._failed: list[UnsendableDocument] = []

    @property
    def failed(self) -> int:
        """Documents that failed so far."""
        return len(self._failed) + self._count("failed")

    @property
    def ended(self) -> int:
        """Documents of which it is known what became of them; skipped ones are no documents."""
        return len(self._failed) + sum(map(self._count, ("done", "failed", "cancelled")))

    def _count(self, part: str) -> int:
        return sum(asdict(job.progress)[part] for job in self.jobs.values())

    def found(self) -> None:
        """One more document was read, and will be sent."""
        self._found += 1

    def skip(self, file: SkippedFile) -> None:
        self._found += 1
        self._skipped.append(file)

    def fail(self, document: UnsendableDocument, *, found: bool = False) -> None:
        """Count a document that cannot be sent, or that was refused."""
        self._found += not found
        self._failed.append(document)

    def result(self, *, waited: bool) -> dict[str, Any]:
        """Return the whole account, as --json prints it."""
        jobs = list(self.jobs.values())
        parts: Counter[str] = Counter()
        changes: Counter[str] = Counter()
        for job in jobs:
            parts.update(asdict(job.progress))
            changes.update(job.changes)
        faults = [{"doc_id": e.doc_id, "message": e.message} for e in self._failed]
        faults += [asdict(error) for job in jobs for error in job.errors]
        reasons = Counter(e.reason for e in self._failed)
        reasons.update(_reason(error.message) for job in jobs for error in job.errors)
        cancelled = parts["cancelled"] if waited else 0
        failed = len(self._failed) + (parts["failed"] if waited else 0)
        done = parts["done"] if waited else 0
        unchanged = min(changes["unchanged"], done)
        sent = 0 if waited else parts["total"]
        sums = {
            "ingested": done - unchanged,
            "unchanged": unchanged,
            "skipped": len(self._skipped),
            "failed": failed,
            "cancelled": cancelled,
            "sent": sent,
        }
        if self._found != sum(sums.values()):
            raise CommandError(
                f"{self._found} documents were found, and of {sum(sums.values())} it is known what "
                f"became of them ({sums}): look at `kvstitch jobs`, and ingest them again"
            )
        return {
            "documents": len(self._failed) + parts["total"],
            "stored": parts["done"],
            "chunks": sum(job.chunks for job in jobs),
            "changes": dict(changes),
            "found": self._found,
            **sums,
            "skipped_by_reason": dict(Counter(file.reason for file in self._skipped)),
            "failed_by_reason": dict(reasons),
            "jobs": list(self.jobs),
            "skipped_files": [
                {"path": plain(f.path), "reason": f.reason, "detail": plain(f.detail)}
                for f in self._skipped
            ],
            "errors": faults,
            "warned": sum(job.warned for job in jobs),
            "warnings": [asdict(one) for job in jobs for one in job.warnings],
        }


def sentence(result: Mapping[str, Any]) -> str:
    """Return the account in a line, and a line for the reasons of each kind."""
    names = ["ingested", "unchanged", "skipped", "failed"]
    names += [name for name in ("cancelled", "sent") if result[name]]
    lines = [f"{result['found']} found = " + " + ".join(f"{result[n]} {n}" for n in names)]
    for name in ("skipped", "failed"):
        reasons = Counter(result[f"{name}_by_reason"]).most_common()
        if reasons:
            lines.append(f"{name}: " + ", ".join(f"{n} {plain(reason)}" for reason, n in reasons))
    if result["warned"]:
        codes = Counter(w["code"] for one in result["warnings"] for w in one["warnings"])
        said = ", ".join(f"{n} {code.replace('_', ' ')}" for code, n in codes.most_common())
        lines.append(f"stored, but not all of them: {result['warned']} ({plain(said)})")
    return "\n".join(lines)


def _reason(message: str) -> str:
    """Return the beginning of the service's message, which names no document."""
    found = _FIRST_WORDS.match(message)
    return (found[0] if found else message).strip() or message


class Ingest:
    """Sends documents, waits for their jobs, and shows both as progress bars."""

    def __init__(self, args: argparse.Namespace, metadata: dict[str, Any], *, total: int) -> None:
        self._given, self._metadata = args, metadata
        self._readers = [name.strip() for name in args.readers.split(",") if name.strip()]
        self.account = Account()
        self._resumed = 0
        self._forecast: Forecast | None = None
        self._time_said = False
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
        with contextlib.suppress(errors.Forbidden):
            self._forecast = forecast(sources, count(sources), client.status())
        for line in () if self._forecast is None else self._forecast.lines():
            self.say(line)

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
        done = submit(
            client, batch,
            collection=args.collection, metadata=self._metadata, readers=self._readers,
        )  # fmt: skip
        for reply in done.jobs:
            self._resumed += reply.resumed
            self._note(client, reply.job)
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
                self._note(client, job)

    def _note(self, client: Client, job: Job) -> None:
        """Take over a job's state, and name what is new in it; the first one may hold some."""
        job = all_errors(client, job)
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
        result["resumed_jobs"] = self._resumed
        result["forecast"] = None if self._forecast is None else self._forecast.as_json()
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
        if eta and not self._time_said and self._forecast and self._forecast.seconds is None:
            self._time_said = True
            self.say(f"by the first of them, {time_left(eta)}")
        notes = [f"{account.failed} failed" if account.failed else "", time_left(eta or None)]
        note = ", ".join(filter(None, notes))
        self.bar.update(self._stored, completed=account.ended, note=note)
