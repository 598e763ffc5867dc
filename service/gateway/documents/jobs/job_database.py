"""What the parts of the job store share: rows of documents, and the jobs that they make."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from kvstitch.records.documents import (
    DocumentWarning,
    Job,
    JobFault,
    JobProgress,
    WarnedDocument,
)
from retriever.sql.expressions import among, upsert
from service.gateway.documents.jobs.job_records import NO_WARNINGS, IngestDocument, StoredJob
from service.gateway.documents.jobs.spool_folder import SpoolFolder
from service.gateway.service_database import ServiceDatabase
from service.gateway.tables import documents, freed_files, jobs, sizes

# Frees the space of a document that is no longer needed here.
FREE: dict[str, Any] = {"kind": None, "meta": None, "content": None, "spooled": None}
OF_TENANTS = documents.join(jobs)
# States are written out, not sent, so that the indexes of some states serve.
UNFINISHED = documents.c.state.in_([sa.literal_column("'pending'"), sa.literal_column("'indexed'")])


class JobDatabase:
    """Rows of one gateway. Thread-safe; every call blocks."""

    def __init__(self, database: ServiceDatabase, spool: SpoolFolder) -> None:
        self.read, self.write = database.read, database.write
        self.scrub = database.scrub
        self.spool = spool
        self.me = database.gateway_id
        self.shared = database.shared

    def mine(self, table: sa.Table) -> sa.ColumnElement[bool]:
        """Return whether a row is this gateway's; others' are left alone."""
        return table.c.owner == self.me if self.shared else sa.true()

    @contextmanager
    def freeing(self) -> Iterator[sa.Connection]:
        """Yield a transaction after which the files that no row names any more are removed."""
        with self.write() as write:
            yield write
            if self.shared:  # without files
                return
            freed = write.scalars(sa.select(freed_files.c.name)).all()
        if freed:
            self.spool.remove(freed)
            with self.write() as write:
                write.execute(freed_files.delete().where(among(freed_files.c.name, freed)))


def in_state(state: str, of: sa.FromClause = documents) -> sa.ColumnElement[bool]:
    """Return whether a document is in this state."""
    return sa.literal_column(f"'{state}'") == of.c.state


def lock_jobs(write: sa.Connection, job_ids: Sequence[str]) -> None:
    """Before documents of these jobs change: let nobody else compute the jobs' states meanwhile."""
    locked = sa.select(jobs.c.job_id).where(among(jobs.c.job_id, job_ids)).order_by(jobs.c.job_id)
    write.execute(locked.with_for_update()).all()


def update_job_states(write: sa.Connection, job_ids: Sequence[str]) -> None:
    """Compute the states of jobs from those of their documents, after these have changed."""
    for job_id in sorted(set(job_ids)):
        cancelled = write.scalars(sa.select(jobs.c.cancelled).where(jobs.c.job_id == job_id)).one()
        counted = sa.select(documents.c.state).where(documents.c.job_id == job_id).distinct()
        state = _job_state(set(write.scalars(counted)), bool(cancelled))
        change = jobs.update().where(jobs.c.job_id == job_id)
        write.execute(change.values(state=state, updated=time.time()))


def _job_state(documents: set[str], cancelled: bool) -> str:
    """Return the state of a job whose documents are in these states."""
    if documents == {"pending"}:
        return "queued"
    if documents & {"pending", "indexed"}:
        return "running"
    if cancelled:
        return "cancelled"
    for state in ("dead", "failed"):
        if state in documents:
            return state
    return "cancelled" if documents == {"cancelled"} else "succeeded"


def record_sizes(write: sa.Connection, documents: Iterable[IngestDocument]) -> None:
    """Note the sizes of documents that are indexed, by which tenants' quotas are counted."""
    rows = sorted((*item.key, item.size, item.warnings) for item in documents)
    upsert(write, sizes, [dict(zip(sizes.columns.keys(), row, strict=True)) for row in rows])


MAX_ERRORS = 100  # that a job shows unless more are asked for
BYTES_PER_TOKEN = 4  # of a document that is not indexed yet: a guess
# What `load_job` reads of a job.
JOB = sa.select(*jobs.c["job_id", "number", "tenant", "state", "created", "updated", "readers"])


def load_job(read: sa.Connection, row: sa.Row[Any], max_errors: int = MAX_ERRORS) -> StoredJob:
    """Return a job from its row of JOB and the rows of its documents, with so many errors."""
    mine = documents.c.job_id == row.job_id
    kinds = documents.c["state", "change"]
    sums = sa.func.count().label("n"), sa.func.sum(documents.c.chunks).label("chunks")
    counted = sa.select(*kinds, *sums).where(mine).group_by(*kinds).order_by(*kinds)
    states, changes, chunks = Counter[str](), Counter[str](), 0
    for part in read.execute(counted):
        states[part.state] += part.n
        chunks += part.chunks
        if part.change is not None and part.state not in ("failed", "dead"):
            changes[part.change] += part.n
    named = documents.c["doc_id", "collection"]
    has_warnings = mine, documents.c.warnings != NO_WARNINGS

    def told(column: sa.Column[Any], *where: sa.ColumnElement[bool]) -> list[tuple[str, str, str]]:
        """Return (collection, document, what is said of it) of the first documents."""
        query = sa.select(*named, column.label("said")).where(*where)
        rows = read.execute(query.order_by(documents.c.number).limit(max_errors))
        return [(each.collection, each.doc_id, each.said) for each in rows]

    warned = sa.select(sa.func.count()).select_from(documents).where(*has_warnings)
    job = Job(
        job_id=row.job_id,
        state=row.state,
        progress=JobProgress(
            done=states["done"],
            failed=states["failed"] + states["dead"],
            cancelled=states["cancelled"],
            total=states.total(),
        ),
        chunks=chunks,
        changes=dict(changes),
        errors=[],
        warnings=[],
        warned=int(read.scalar(warned) or 0),
        created=row.created,
        updated=row.updated,
    )
    failed = told(documents.c.error, mine, documents.c.error.is_not(None))
    return StoredJob(
        job,
        [(collection, JobFault(doc_id=name, message=said)) for collection, name, said in failed],
        [
            (collection, WarnedDocument(doc_id=name, warnings=read_warnings(said)))
            for collection, name, said in told(documents.c.warnings, *has_warnings)
        ],
        0 if job.ended else _tokens_ahead(read, row.job_id),
        json.loads(row.readers),
    )


def read_warnings(stored: str) -> list[DocumentWarning]:
    """Return the warnings of a document from their JSON."""
    return [DocumentWarning(**one) for one in json.loads(stored)]


def _tokens_ahead(read: sa.Connection, job_id: str) -> int:
    """Count tokens of the documents that are not done up to the job's last: oldest come first."""
    indexed = documents.c.state == "indexed"
    tokens = sa.case((indexed, documents.c.tokens), else_=documents.c.bytes // BYTES_PER_TOKEN)
    own = documents.alias()
    last = sa.select(sa.func.max(own.c.number)).where(own.c.job_id == job_id).scalar_subquery()
    ahead = sa.select(sa.func.sum(tokens)).where(UNFINISHED, documents.c.number <= last)
    return int(read.scalar(ahead) or 0)
