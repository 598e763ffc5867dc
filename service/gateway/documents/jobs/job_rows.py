"""A job as the rows of its documents make it."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from typing import Any

import sqlalchemy as sa

from kvstitch.records.documents import (
    DocumentWarning,
    Job,
    JobFault,
    JobProgress,
    WarnedDocument,
)
from service.gateway.documents.jobs.job_database import UNFINISHED, sealed_for
from service.gateway.documents.jobs.job_records import NO_WARNINGS, StoredJob
from service.gateway.encryption.sealed_rows import SealedRows
from service.gateway.tables import documents, jobs

MAX_ERRORS = 100  # that a job shows unless more are asked for
BYTES_PER_TOKEN = 4  # of a document that is not indexed yet: a guess
# What `load_job` reads of a job.
JOB = sa.select(*jobs.c["job_id", "number", "tenant", "state", "created", "updated", "readers"])


def load_job(
    read: sa.Connection, row: sa.Row[Any], sealed: SealedRows, max_errors: int = MAX_ERRORS
) -> StoredJob:
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
        where_of = partial(sealed_for, "said", row.job_id)
        return [
            (each.collection, each.doc_id, sealed.opened_text(each.said, *where_of(each)) or "")
            for each in rows
        ]

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
