"""What the parts of the job store share: rows of documents and jobs, and what seals them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from retriever.sql.expressions import among, upsert
from service.gateway.documents.jobs.job_records import NO_WARNINGS, IngestDocument
from service.gateway.documents.jobs.spool_folder import SpoolFolder
from service.gateway.encryption.sealed_rows import SealedRows
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
        self.sealed = SealedRows(spool.keys)
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

    def meta(self, row: Any) -> str | None:
        """Return what was sent with a document, as JSON."""
        return self.sealed.opened_text(row.meta, *sealed_for("meta", row.job_id, row))

    def sealed_warnings(self, document: IngestDocument, *where: object) -> str:
        """Return what is stored for a document's warnings."""
        if document.warnings == NO_WARNINGS:
            return NO_WARNINGS
        return self.sealed.text(document.tenant, document.warnings, *where) or NO_WARNINGS


def sealed_for(what: str, job_id: str, document: Any) -> tuple[object, ...]:
    """Return where a document's `meta`, `content`, or what is `said` of it, is sealed for."""
    return f"job {what}", job_id, document.collection, document.doc_id


def warnings_place(tenant: str, collection: str, doc_id: str) -> tuple[object, ...]:
    """Return where the warnings of a stored document are sealed for."""
    return "warnings", tenant, collection, doc_id


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
