"""Rows of documents and jobs: which of them a gateway takes, and the state of a job that they make.

Documents of a shared database are taken by one gateway at a time, by a row lock that others skip. A
document stays with its gateway while that gives signs of life. A gateway whose documents went on
with another cannot change them any more.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

from retriever.sql.expressions import among, upsert
from service.gateway.documents.jobs.job_records import (
    OPEN_STATES,
    DocumentError,
    DocumentWarnings,
    IngestDocument,
    Job,
)
from service.gateway.encryption.sealed_rows import SealedRows
from service.gateway.tables import documents, jobs, sizes

T = TypeVar("T")
MAX_ERRORS = 100  # that a job shows unless more are asked for
NO_WARNINGS = "[]"
BYTES_PER_TOKEN = 4  # of a document that is not indexed yet: a guess
# What `load_job` reads of a job.
JOB = sa.select(*jobs.c["job_id", "number", "tenant", "state", "created", "updated", "readers"])
# States are written out, not sent, so that the indexes of some states serve.
UNFINISHED = documents.c.state.in_([sa.literal_column("'pending'"), sa.literal_column("'indexed'")])


def in_state(state: str, of: sa.FromClause = documents) -> sa.ColumnElement[bool]:
    """Return whether a document is in this state."""
    return sa.literal_column(f"'{state}'") == of.c.state


def in_turns(
    read: sa.Connection, query: sa.Select[Any], limit: int, max_bytes: int | None
) -> list[int] | None:
    """Return the numbers of the next documents of a query where tenants come in turns."""
    open_jobs = sa.select(jobs.c.tenant).where(jobs.c.state.in_(OPEN_STATES)).distinct()
    tenants = list(read.scalars(open_jobs))
    if len(tenants) < 2:
        return None
    sizes_only = query.with_only_columns(documents.c.number, documents.c.bytes)
    found: list[tuple[int, int, int]] = []  # (turn, number, bytes)
    for left, tenant in zip(range(len(tenants), 0, -1), shuffled(tenants), strict=True):
        share = -(-(limit - len(found)) // left)
        rows = read.execute(sizes_only.where(jobs.c.tenant == tenant).limit(share))
        found += [(turn, row.number, row.bytes) for turn, row in enumerate(rows)]
    out: list[int] = []
    total = 0
    for _, number, size in sorted(found, key=lambda each: each[0]):
        total += size
        if out and max_bytes is not None and total > max_bytes:
            break
        out.append(number)
    return out


def shuffled(items: Sequence[T]) -> list[T]:
    """Return the items in another order each time, so that nobody is first for ever."""
    return random.sample(items, len(items))


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


def said_place(job_id: str, collection: str, doc_id: str) -> tuple[object, ...]:
    """Return where what is said of a document of a job is sealed for."""
    return "job said", job_id, collection, doc_id


def load_job(
    read: sa.Connection, row: sa.Row[Any], sealed: SealedRows, max_errors: int = MAX_ERRORS
) -> Job:
    """Return a job from its row of JOB and the rows of its documents, with so many errors."""
    mine = documents.c.job_id == row.job_id
    kinds = documents.c["state", "change"]
    sums = sa.func.count().label("n"), sa.func.sum(documents.c.chunks).label("chunks")
    counted = sa.select(*kinds, *sums)
    states, changes, chunks = Counter[str](), Counter[str](), 0
    for part in read.execute(counted.where(mine).group_by(*kinds).order_by(*kinds)):
        states[part.state] += part.n
        chunks += part.chunks
        if part.change is not None and part.state not in ("failed", "dead"):
            changes[part.change] += part.n
    said = documents.c.error.is_not(None)
    failed = sa.select(*documents.c["doc_id", "error", "collection"]).where(mine, said)
    failed = failed.order_by(documents.c.number).limit(max_errors)
    has_warnings = mine, documents.c.warnings != NO_WARNINGS

    def opened(text: str, collection: str, doc_id: str) -> str:
        return sealed.opened_text(text, *said_place(row.job_id, collection, doc_id)) or ""

    warned = sa.select(*documents.c["doc_id", "warnings", "collection"]).where(*has_warnings)
    warned = warned.order_by(documents.c.number).limit(max_errors)
    warned_count = sa.select(sa.func.count()).select_from(documents).where(*has_warnings)
    return Job(
        job_id=row.job_id,
        state=row.state,
        created=row.created,
        updated=row.updated,
        total=states.total(),
        done=states["done"],
        failed=states["failed"] + states["dead"],
        cancelled=states["cancelled"],
        chunks=chunks,
        changes=dict(changes),
        errors=[DocumentError(name, opened(error, where, name), where)
                for name, error, where in read.execute(failed)],
        warnings=[DocumentWarnings(name, json.loads(opened(said, where, name)), where)
                  for name, said, where in read.execute(warned)],
        warned=int(read.scalar(warned_count) or 0),
        tokens_ahead=_tokens_ahead(read, row.job_id) if row.state in OPEN_STATES else 0,
        readers=json.loads(row.readers),
    )  # fmt: skip


def _tokens_ahead(read: sa.Connection, job_id: str) -> int:
    """Count tokens of the documents that are not done up to the job's last: oldest come first."""
    indexed = documents.c.state == "indexed"
    tokens = sa.case((indexed, documents.c.tokens), else_=documents.c.bytes // BYTES_PER_TOKEN)
    own = documents.alias()
    last = sa.select(sa.func.max(own.c.number)).where(own.c.job_id == job_id).scalar_subquery()
    ahead = sa.select(sa.func.sum(tokens)).where(UNFINISHED, documents.c.number <= last)
    return int(read.scalar(ahead) or 0)


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


def _comes_first(waiting: sa.FromClause) -> sa.ColumnElement[bool]:
    """Return whether no earlier revision of a document is to be indexed, by whomever."""
    earlier, sent, own = documents.alias(), jobs.alias(), jobs.alias()
    tenant = sa.select(own.c.tenant).where(own.c.job_id == waiting.c.job_id).correlate(waiting)
    found = sa.exists().where(
        sent.c.job_id == earlier.c.job_id,
        in_state("pending", earlier),
        earlier.c.number < waiting.c.number,
        earlier.c.doc_id == waiting.c.doc_id,
        earlier.c.collection == waiting.c.collection,
        sent.c.tenant == tenant.scalar_subquery(),
    )
    return ~found.correlate(waiting)


def take(write: sa.Connection, gateway_id: str, state: str, limit: int) -> None:
    """Take documents in this state, the oldest first, until this gateway has so many."""
    own = sa.select(sa.func.count()).where(in_state(state), documents.c.owner == gateway_id)
    held = write.scalars(own).one()
    if held < limit:
        waiting = documents.alias()
        free = waiting.c.owner == "", in_state(state, waiting)
        first = _comes_first(waiting) if state == "pending" else sa.true()
        numbers = sa.select(waiting.c.number).where(*free, first).order_by(waiting.c.number)
        taken = numbers.limit(limit - held).with_for_update(skip_locked=True, of=waiting)
        change = documents.update().where(documents.c.number.in_(taken))
        write.execute(change.values(owner=gateway_id))


def record_sizes(write: sa.Connection, documents: Iterable[IngestDocument]) -> None:
    """Note the sizes of documents that are indexed."""
    rows = sorted((*item.key, item.size, item.warnings) for item in documents)
    upsert(write, sizes, [dict(zip(sizes.columns.keys(), row, strict=True)) for row in rows])
