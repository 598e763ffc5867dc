"""What became of every file of an ingest; the numbers must add up.

found = ingested + unchanged + skipped + failed (+ cancelled, + sent, if nobody waits)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kvstitch.client import Job
from service.cli.documents.folder import SkippedFile, UnsendableDocument
from service.cli.output import plain
from service.cli.service_client import CommandError

_FIRST_WORDS = re.compile(r"[^:(]*")


class Account:
    """Counts documents as they are found, sent, refused and stored.

    Attributes:
        jobs: The last known state of every job, by id.
    """

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
        """A document cannot be sent, or was refused.

        Args:
            document: It, and why.
            found: It was counted before.
        """
        self._found += not found
        self._failed.append(document)

    def result(self, *, waited: bool) -> dict[str, Any]:
        """Return the whole account, as --json prints it.

        Args:
            waited: All jobs have ended; else what they hold was only sent.

        Raises:
            CommandError: It does not add up.
        """
        jobs = list(self.jobs.values())
        parts: Counter[str] = Counter()
        changes: Counter[str] = Counter()
        for job in jobs:
            parts.update(asdict(job.progress))
            changes.update(job.changes)
        errors = [{"doc_id": e.doc_id, "message": e.message} for e in self._failed]
        errors += [asdict(error) for job in jobs for error in job.errors]
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
            "errors": errors,
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
    return "\n".join(lines)


def _reason(message: str) -> str:
    """Return the beginning of the service's message, which names no document."""
    found = _FIRST_WORDS.match(message)
    return (found[0] if found else message).strip() or message
