"""What an ingest will take, said before it begins, and what became of every file, said at its end.

Tokens are guessed by bytes of files until the service has stored some: a page of a PDF may hold a
line or two thousand words. The account at the end must add up:

    found = ingested + unchanged + skipped + failed (+ cancelled, + sent, if nobody waits)
"""

import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvstitch.client import Job
from kvstitch.service.cli.documents.sources import SkippedFile, SourceFile, UnsendableDocument
from kvstitch.service.cli.options import CommandError
from kvstitch.service.cli.output import duration, plain, size

BYTES_PER_TOKEN = 4.0  # of text
# Of a file, the share of its bytes that are text; files that are compressed hold more than that.
_TEXT_SHARE = {
    **{".html": 0.4, ".htm": 0.4, ".eml": 0.3, ".xlsx": 2.0, ".docx": 0.5, ".pptx": 0.05},
    **{".epub": 1.5, ".pdf": 0.1},
}


@dataclass(frozen=True)
class Forecast:
    """What an ingest will take; `tiers`: bytes that are free in each that has a bound, on a disk no
    more than that has."""

    documents: int
    unchanged: int  # files of these
    file_bytes: int
    tokens: int
    kv_bytes: int
    seconds: float | None
    tiers: dict[str, int]
    codec: str

    def lines(self) -> list[str]:
        """Return it in sentences."""
        what = f"{self.documents} documents, {size(self.file_bytes)}"
        what += f", {self.unchanged} of them unchanged" if self.unchanged else ""
        what += f": about {self.tokens:,} tokens"
        out = [f"{what}, {size(self.kv_bytes)} of KV ({self.codec})"]
        if self.seconds is None:
            out.append("how long it takes is known when the first of them are stored")
        else:
            out.append(f"it takes {duration(self.seconds)} at the rate of the last documents")
        held = [
            f"{tier} has room for " + ("all" if free >= self.kv_bytes else self._share(free))
            for tier, free in self.tiers.items()
        ]
        if held:
            out.append(f"of this KV {', '.join(held)}")
        if self.codec == "raw" and any(free < self.kv_bytes for free in self.tiers.values()):
            out.append("a service with the default codec, k8v8, stores 52 % of these bytes")
        return out

    def _share(self, free: float) -> str:
        return f"{100 * max(0.0, free) / self.kv_bytes:.0f} % ({size(max(0.0, free))})"


def forecast(
    sources: Sequence[SourceFile],
    documents: int,
    status: Mapping[str, Any],
    unchanged: Container[Path] = (),
) -> Forecast | None:
    """Say what files will take, where some are `unchanged`; None if the service is not ready, or of
    another version."""
    ingest, model = status.get("ingest"), status.get("model")
    if not ingest or not model:
        return None
    file_bytes, text_bytes, same = 0, 0.0, 0
    for source in sources:
        try:
            length = source.path.stat().st_size
        except OSError:
            continue
        file_bytes += length
        if source.path in unchanged:
            same += 1
            continue
        text_bytes += length * _TEXT_SHARE.get(source.path.suffix.lower(), 1.0)
    tokens = round(text_bytes / BYTES_PER_TOKEN)
    rate = ingest["tokens_per_s"]
    return Forecast(
        documents=documents,
        unchanged=same,
        file_bytes=file_bytes,
        tokens=tokens,
        kv_bytes=round(tokens * ingest["kv_bytes_per_token"]),
        seconds=tokens / rate if rate else None,
        tiers=_room(status.get("tiers", {}), ingest.get("disk_free_bytes")),
        codec=model["codec"],
    )


def _room(tiers: Mapping[str, Mapping[str, float]], disk_free: float | None) -> dict[str, int]:
    """Return the bytes that are free in each tier that has a bound; that of the disk is one."""
    room = {
        tier: values["capacity_bytes"] - values.get("used_bytes", 0.0)
        for tier, values in tiers.items()
        if values.get("capacity_bytes")
    }
    if "ssd" in room and disk_free is not None:
        room["ssd"] = min(room["ssd"], disk_free)
    return {tier: round(free) for tier, free in room.items()}


@dataclass
class Account:
    """Counts documents as they are found, sent, refused and stored."""

    jobs: dict[str, Job] = field(default_factory=dict)
    skipped: list[SkippedFile] = field(default_factory=list)
    failed: list[UnsendableDocument] = field(default_factory=list)  # none of them is in a job
    found: int = 0

    def count(self, *parts: str) -> int:
        """Return how many documents of jobs are `done`, `failed`, `cancelled`."""
        return sum(getattr(job.progress, part) for job in self.jobs.values() for part in parts)

    def result(self, *, waited: bool) -> dict[str, Any]:
        """Return the whole account, as --json prints it."""
        jobs = list(self.jobs.values())
        changes: Counter[str] = Counter()
        for job in jobs:
            changes.update(job.changes)
        total, done = self.count("total"), self.count("done")
        unchanged = min(changes["unchanged"], done) if waited else 0
        sums = {
            "ingested": done - unchanged if waited else 0,
            "unchanged": unchanged,
            "skipped": len(self.skipped),
            "failed": len(self.failed) + (self.count("failed") if waited else 0),
            "cancelled": self.count("cancelled") if waited else 0,
            "sent": 0 if waited else total,
        }
        if self.found != sum(sums.values()):
            raise CommandError(
                f"{self.found} documents were found, and of {sum(sums.values())} it is known what "
                f"became of them ({sums}): look at `kvstitch jobs`, and ingest them again"
            )
        errors = [error for job in jobs for error in job.errors]
        faults = [{"doc_id": e.doc_id, "message": e.message} for e in self.failed]
        faults += [asdict(error) for error in errors]
        reasons = Counter(document.reason for document in self.failed)
        reasons.update(_reason(error.message) for error in errors)
        return {
            "documents": len(self.failed) + total,
            "stored": done,
            "chunks": sum(job.chunks for job in jobs),
            "changes": dict(changes),
            "found": self.found,
            **sums,
            "skipped_by_reason": dict(Counter(file.reason for file in self.skipped)),
            "failed_by_reason": dict(reasons),
            "jobs": list(self.jobs),
            "skipped_files": [
                {"path": plain(f.path), "reason": f.reason, "detail": plain(f.detail)}
                for f in self.skipped
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
    return re.split("[:(]", message, maxsplit=1)[0].strip() or message
