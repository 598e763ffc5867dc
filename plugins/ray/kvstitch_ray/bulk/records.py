"""What bulk keeps in PostgreSQL, and what goes through Ray: runs, ranges and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

MAX_ERRORS = 20  # that a range remembers
MAX_ERROR_CHARS = 500


@dataclass(frozen=True)
class Order:
    """What a command ingests, and how many workers do it.

    Attributes:
        input: A folder, a file of lines, or s3://bucket/prefix.
        input_endpoint: URL of the input's S3 server; "": AWS.
        input_region: Region of the input's bucket; "": the default one.
        tenant: Who owns the documents.
        collection: Where documents go that name none.
        metadata: Added to all.
        range_documents: Documents of a range, the unit that is tried again.
        again: Whether all is done again.
        workers: Number of actors.
        gpus, cpus: What each actor takes.
        ray_address: Where the Ray cluster is; "": at RAY_ADDRESS, else one is started on this
            machine.
    """

    input: str
    input_endpoint: str = ""
    input_region: str = ""
    tenant: str = ""
    collection: str = "default"
    metadata: dict[str, Any] = field(default_factory=dict)
    range_documents: int = 256
    again: bool = False
    workers: int = 1
    gpus: float = 0.0
    cpus: float = 1.0
    ray_address: str = ""


@dataclass(frozen=True)
class Run:
    """One input for one model and one set of tiers; the same command makes the same run."""

    run_id: str
    input: str
    tenant: str
    collection: str
    metadata: dict[str, Any] = field(default_factory=dict)
    created: float = 0.0


@dataclass(frozen=True)
class Range:
    """A piece of the input: bytes of a file of lines, or some whole files."""

    path: str
    start: int
    length: int
    first_line: int
    files: list[str]
    documents: int
    number: int = 0
    attempts: int = 0


@dataclass
class Counts:
    """What became of the documents of a range."""

    done: int = 0
    failed: int = 0
    chunks: int = 0
    tokens: int = 0
    stored: int = 0
    present: int = 0
    bytes: int = 0
    warned: int = 0
    errors: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)

    def fail(self, doc_id: str, message: str) -> None:
        """Count a document that failed."""
        self.failed += 1
        if len(self.errors) < MAX_ERRORS:
            self.errors.append((doc_id, message[:MAX_ERROR_CHARS]))

    def warn(self, doc_id: str, messages: Sequence[str]) -> None:
        """Count a document that is stored, but not all of it."""
        self.warned += 1
        if len(self.warnings) < MAX_ERRORS:
            self.warnings.append((doc_id, "; ".join(messages)[:MAX_ERROR_CHARS]))


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        run: The run.
        ranges: Number of ranges by state: open, claimed, done, failed.
        documents: Number of documents in the whole input.
        done, failed, chunks, tokens, stored, present, bytes, warned: As in `Counts`; ranges under
            way count as they last reported.
        workers: Workers that hold ranges now.
        chunks_per_s: Chunks of the last minutes per second; None while nothing is done.
        tokens_per_s: Tokens of the last minutes per second.
        eta_s: Seconds until all documents are done at this rate; None if it is not known.
    """

    run: Run
    ranges: dict[str, int]
    documents: int
    done: int
    failed: int
    chunks: int
    tokens: int
    stored: int
    present: int
    bytes: int
    warned: int
    workers: int
    chunks_per_s: float | None
    tokens_per_s: float | None
    eta_s: float | None

    @property
    def ended(self) -> bool:
        """Whether no range is left to do."""
        return not self.ranges.get("open") and not self.ranges.get("claimed")

    def as_json(self) -> dict[str, Any]:
        """Return the run's fields and these, as commands print them."""
        fields = asdict(self)
        return {**fields.pop("run"), **fields, "ended": self.ended}
