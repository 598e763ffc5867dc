"""Documents on their way in: what is to be done with which of them next, and what has been done.

    pending ── parse ── split, embed ── catalog and index ── indexed ── KV stored ── done
                ├── error: failed                                └── the worker died: dead
                └── takes long: beside all others (long_documents.py)

Every step reads here what to do, and doing it again changes nothing where it was done already: a
restart simply continues.

Documents of a shared database are taken by one gateway at a time, by a row lock that others skip. A
document stays with its gateway while that gives signs of life. A gateway whose documents went on
with another cannot change them any more.
"""

import json
import random
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import sqlalchemy as sa

from kvstitch.records.documents import OPEN_STATES
from kvstitch.retriever.scope import View
from kvstitch.retriever.sql.expressions import among, upsert
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument, SpooledFile, pen_of
from kvstitch.service.gateway.documents.jobs.spool_folder import SpoolFolder
from kvstitch.service.gateway.service_database import ServiceDatabase
from kvstitch.service.gateway.tables import documents, freed_files, jobs, sizes

# Frees the space of a document that is no longer needed here.
FREE: dict[str, Any] = {"kind": None, "meta": None, "content": None, "spooled": None}
OF_TENANTS = documents.join(jobs)
# States are written out, not sent, so that the indexes of some states serve.
UNFINISHED = documents.c.state.in_([sa.literal_column("'pending'"), sa.literal_column("'indexed'")])
_UNFINISHED = sa.select(
    *documents.c["number", "job_id", "collection", "doc_id", "bytes", "kind", "meta", "content",
                 "spooled", "change", "chunks"], *jobs.c["tenant", "view", "writes", "takes"]
).select_from(OF_TENANTS).order_by(documents.c.number)  # fmt: skip


class DocumentQueue(Protocol):
    """Documents of jobs on disk, or of a range of a bulk run. Every call may block."""

    def pending(
        self,
        limit: int,
        max_bytes: int,
        *,
        without: Collection[int] = (),
        largest: int | None = None,
    ) -> list[IngestDocument]:
        """Return the next documents to index, oldest first: one, and more up to `max_bytes`."""

    def indexed(self, limit: int) -> list[IngestDocument]:
        """Return the next documents whose KV is to be stored, oldest first."""

    def still_in(self, state: str, numbers: Sequence[int]) -> set[int]:
        """Return those of the documents that are in this state; others may have been cancelled."""

    def set_indexed(self, indexed: Sequence[IngestDocument]) -> None:
        """Note documents that are in the catalog and the index."""

    def set_done(self, numbers: Sequence[int]) -> None:
        """Note documents whose KV is stored."""

    def set_failed(
        self, failed: Sequence[tuple[IngestDocument, str]], state: str = "failed"
    ) -> None:
        """Note (document, what is wrong); "dead": the worker died of the document."""


class UnfinishedDocuments:
    """The documents of jobs that are not done, in the rows of one gateway. Thread-safe."""

    def __init__(self, database: ServiceDatabase, spool: SpoolFolder) -> None:
        self.database = database
        self._read, self._write = database.read, database.write
        self._spool = spool
        self._shared = database.shared

    def pending(
        self,
        limit: int,
        max_bytes: int,
        *,
        without: Collection[int] = (),
        largest: int | None = None,
    ) -> list[IngestDocument]:
        wanted = sa.true() if largest is None else documents.c.bytes <= largest
        if without:
            wanted = sa.and_(wanted, ~among(documents.c.number, sorted(without)))
        return self._unfinished("pending", limit, max_bytes, wanted)

    def indexed(self, limit: int) -> list[IngestDocument]:
        return self._unfinished("indexed", limit, None, sa.true())

    def still_in(self, state: str, numbers: Sequence[int]) -> set[int]:
        with self._read() as read:
            return self._own_rows(read, numbers, in_state(state))

    def set_indexed(self, indexed: Sequence[IngestDocument]) -> None:
        free = {**FREE, "owner": ""} if self._shared else FREE
        with self._freeing() as write:
            own = self._own_rows(write, [item.number for item in indexed])
            record_sizes(write, [item for item in indexed if item.number in own])
            values = [
                {"_number": item.number, "change": item.change, "chunks": item.chunks,
                 "tokens": item.tokens, "warnings": item.warnings}
                for item in indexed
            ]  # fmt: skip
            self._update(write, {"state": "indexed", **free}, values)

    def set_done(self, numbers: Sequence[int]) -> None:
        with self._write() as write:
            self._update(write, {"state": "done"}, [{"_number": n} for n in numbers])

    def set_failed(
        self, failed: Sequence[tuple[IngestDocument, str]], state: str = "failed"
    ) -> None:
        values = [{"_number": item.number, "error": error} for item, error in failed]
        with self._freeing() as write:
            self._update(write, {"state": state, **FREE}, values)

    def _is_own(self, table: sa.Table) -> sa.ColumnElement[bool]:
        """Return whether a row is this gateway's; others' are left alone."""
        return table.c.owner == self.database.gateway_id if self._shared else sa.true()

    @contextmanager
    def _freeing(self) -> Iterator[sa.Connection]:
        """Yield a transaction after which the files that no row names any more are removed."""
        with self._write() as write:
            yield write
            if self._shared:  # without files
                return
            freed = write.scalars(sa.select(freed_files.c.name)).all()
        if freed:
            self._spool.remove(freed)
            with self._write() as write:
                write.execute(freed_files.delete().where(among(freed_files.c.name, freed)))

    def _own_rows(
        self, read: sa.Connection, numbers: Sequence[int], *wanted: sa.ColumnElement[bool]
    ) -> set[int]:
        """Return those of the documents that are this gateway's, and as is wanted."""
        named = among(documents.c.number, numbers), self._is_own(documents), *wanted
        return set(read.scalars(sa.select(documents.c.number).where(*named)))

    def _update(
        self, write: sa.Connection, values: dict[str, Any], rows: Sequence[dict[str, Any]]
    ) -> None:
        """Update documents that were not cancelled."""
        if not rows:
            return
        numbers = among(documents.c.number, [row["_number"] for row in rows])
        job_ids = write.scalars(sa.select(documents.c.job_id).where(numbers).distinct()).all()
        lock_jobs(write, job_ids)
        change = documents.update().where(
            documents.c.number == sa.bindparam("_number"), UNFINISHED, self._is_own(documents)
        )
        write.execute(change.values(values), rows)
        update_job_states(write, job_ids)

    def _unfinished(
        self, state: str, limit: int, max_bytes: int | None, wanted: sa.ColumnElement[bool]
    ) -> list[IngestDocument]:
        out: list[IngestDocument] = []
        total = 0
        query = _UNFINISHED.where(in_state(state), self._is_own(documents), wanted)
        with (self._write if self._shared else self._read)() as connection:
            if self._shared:
                _take(connection, self.database.gateway_id, state, limit)
            turns = _in_turns(connection, query, limit, max_bytes)
            if turns is not None:
                query, max_bytes = _UNFINISHED.where(among(documents.c.number, turns)), None
            with connection.execute(query.limit(limit)) as rows:
                for row in rows:
                    total += row.bytes
                    if out and max_bytes is not None and total > max_bytes:
                        break
                    out.append(self._document(row))
        return out

    def _document(self, row: Any) -> IngestDocument:
        content: bytes | SpooledFile = row.content or b""
        if row.spooled is not None:
            content = SpooledFile(self._spool.path(row.spooled), row.bytes)
        sent = json.loads(row.meta or "{}")
        return IngestDocument(
            row.doc_id, row.collection, row.kind or "", content, **sent,
            tenant=row.tenant, number=row.number, job_id=row.job_id, chunks=row.chunks,
            view=View.named(row.view), pen=pen_of(row.view, row.writes, row.takes),
            known=row.change is not None, change=row.change or "",
        )  # fmt: skip


def _in_turns(
    read: sa.Connection, query: sa.Select[Any], limit: int, max_bytes: int | None
) -> list[int] | None:
    """Return the numbers of the next documents of a query where tenants come in turns."""
    open_jobs = sa.select(jobs.c.tenant).where(jobs.c.state.in_(OPEN_STATES)).distinct()
    tenants = list(read.scalars(open_jobs))
    if len(tenants) < 2:
        return None
    sizes_only = query.with_only_columns(documents.c.number, documents.c.bytes)
    found: list[tuple[int, int, int]] = []  # (turn, number, bytes)
    random.shuffle(tenants)  # nobody is first for ever
    for left, tenant in zip(range(len(tenants), 0, -1), tenants, strict=True):
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


def _take(write: sa.Connection, gateway_id: str, state: str, limit: int) -> None:
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


def in_state(state: str, of: sa.FromClause = documents) -> sa.ColumnElement[bool]:
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
    """Note the sizes of documents that are indexed, by which tenants' quotas are counted, and what
    they came from."""
    rows = sorted(
        (*item.key, item.size, item.warnings, item.source, item.sha256) for item in documents
    )
    upsert(write, sizes, [dict(zip(sizes.columns.keys(), row, strict=True)) for row in rows])
