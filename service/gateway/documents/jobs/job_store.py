"""Ingest jobs on disk. A job that was accepted is committed, and survives a crash at any point.

    document   spooling ── pending ── chunked, embedded, indexed ──> indexed ── KV stored ──> done
                              └─────────── error ─────────────────────┴──> failed, dead, cancelled

A job is queued, then running, then ended: dead if the worker died of one of its documents, failed
if one failed, cancelled if it was cancelled, else succeeded. Its state is computed from its
documents' states in the same transaction that changes them.
"""

import json
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import sqlalchemy as sa

from kvstitch.records.documents import (
    OPEN_STATES,
    DocumentWarning,
    Job,
    JobFault,
    JobProgress,
    WarnedDocument,
)
from kvstitch.retriever import Scope
from kvstitch.retriever.scope import ANY_PEN, EVERYBODY, EVERYTHING, Pen, View
from kvstitch.retriever.sql.expressions import among
from kvstitch.service.errors import DatabaseUnavailable, InvalidRequest, QuotaExceeded
from kvstitch.service.gateway.documents.jobs.document_queue import (
    FREE,
    OF_TENANTS,
    UNFINISHED,
    UnfinishedDocuments,
    in_state,
    lock_jobs,
    update_job_states,
)
from kvstitch.service.gateway.documents.jobs.job_records import (
    NO_WARNINGS,
    IngestDocument,
    StoredJob,
    pen_of,
)
from kvstitch.service.gateway.documents.pace import WorkAhead
from kvstitch.service.gateway.tables import documents, jobs, sizes

ACCEPTING = 0x6B76_0005  # first number of the advisory lock, the second is the tenant's
_ACCEPTED = jobs.c.state != "spooling"
MAX_ERRORS = 100  # that a job shows unless more are asked for
MAX_UPLOADS = 32  # of one sender at a time
ENDED_KEPT = 2000  # jobs of one sender
# What `_load` reads of a job.
_PEN = jobs.c["view", "writes", "takes"]
_JOB = sa.select(
    *jobs.c["job_id", "number", "tenant", "state", "created", "updated", "readers"], *_PEN
)


class JobStore(UnfinishedDocuments):
    """Jobs, and their documents as a `DocumentQueue`. Thread-safe; every call blocks. The database
    must have been started."""

    def start(self) -> None:
        """Forget what a process that died had not accepted; before there are uploads."""
        self._spool.start()
        with self._freeing() as write:
            write.execute(jobs.delete().where(~_ACCEPTED, self._is_own(jobs)))
        with self._read() as read:
            named = sa.select(documents.c.spooled).where(documents.c.spooled.is_not(None))
            self._spool.sweep(set(read.scalars(named)))

    # -- acceptance ------------------------------------------------------------------------------

    def begin(
        self,
        tenant: str,
        view: View = EVERYTHING,
        pen: Pen = ANY_PEN,
        sender: str = "",
        most: int = 1000,
    ) -> str:
        """Create a job of who reads and writes so, which is invisible until `accept`; return its
        id. Of what the sender has sent before the oldest jobs are forgotten that have ended.

        Raises QuotaExceeded if `most` of the sender's jobs are not done.
        """
        now = time.time()
        row: dict[str, Any] = {"job_id": uuid.uuid4().hex, "tenant": tenant, "state": "spooling",
                               "created": now, "updated": now, "view": view.name,
                               "writes": View(pen.groups).name, "takes": int(pen.takes),
                               "sender": sender}  # fmt: skip
        if self._shared:
            row["owner"] = self.database.gateway_id
        else:  # after all others
            last = sa.select(sa.func.coalesce(sa.func.max(jobs.c.number), 0))
            row["number"] = last.scalar_subquery() + 1
        own = jobs.c.tenant == tenant, jobs.c.sender == sender
        still = jobs.c.state.in_(["spooling", *OPEN_STATES])
        counted = sa.select(jobs.c.state, sa.func.count()).where(*own, still)
        oldest = sa.select(jobs.c.number).where(*own, ~still).order_by(jobs.c.number.desc())
        oldest = oldest.offset(ENDED_KEPT).limit(1)
        with self._write() as write:
            held = {state: n for state, n in write.execute(counted.group_by(jobs.c.state))}
            if sum(held.values()) >= most or held.get("spooling", 0) >= MAX_UPLOADS:
                raise QuotaExceeded(
                    f"of this API key {most} jobs may be not done, and {MAX_UPLOADS} be sent at a "
                    "time: wait for some of them",
                    field="jobs_per_key",
                    retry_after_s=5.0,
                )
            older = jobs.c.number <= oldest.scalar_subquery()
            write.execute(jobs.delete().where(*own, ~still, older))
            write.execute(jobs.insert().values(row))
        return str(row["job_id"])

    def spool(self, job_id: str, items: Sequence[IngestDocument]) -> bytes:
        """Write documents of a job that is not accepted yet, and return their digests. Their files
        are the job's now."""
        rows: list[dict[str, Any]] = []
        known = self._known(job_id, items)
        for item in items:
            content: bytes | None = None
            file = None
            if isinstance(item.content, bytes):
                content = item.content
            elif self._shared:  # others cannot read our files
                content = item.content.read()
            else:
                file = item.content.path.name
            rows.append(
                {"job_id": job_id, "collection": item.collection, "doc_id": item.doc_id,
                 "bytes": item.size, "kind": item.kind, "state": "spooling", "meta": item.meta,
                 "content": content, "spooled": file,
                 "change": "unchanged" if (item.collection, item.doc_id) in known else None}
            )  # fmt: skip
        if rows:
            with self._write() as write:
                write.execute(documents.insert(), rows)
        self._spool.claim(row["spooled"] for row in rows if row["spooled"] is not None)
        return b"".join(item.digest() for item in items)

    def _known(self, job_id: str, items: Sequence[IngestDocument]) -> set[tuple[str, str]]:
        """Return those of these documents whose bytes are those that are stored."""
        sent = {(item.collection, item.doc_id): item.sha256 for item in items if item.sha256}
        if not sent:
            return set()
        tenant = sa.select(jobs.c.tenant).where(jobs.c.job_id == job_id).scalar_subquery()
        query = sa.select(*sizes.c["collection", "doc_id", "sha256"])
        named = sizes.c.tenant == tenant, among(sizes.c.doc_id, [name for _, name in sent])
        with self._read() as read:
            rows = read.execute(query.where(*named)).all()
        return {(row.collection, row.doc_id) for row in rows
                if sent.get((row.collection, row.doc_id)) == row.sha256}  # fmt: skip

    def accept(
        self,
        job_id: str,
        idempotency_key: str | None,
        digest: bytes,
        *,
        readers: Collection[str] = (),
        check: Callable[[int, int], None] | None = None,
    ) -> None:
        """Commit the job: from here on it is worked off, whatever happens to this process.

        `check` is called with (documents, bytes) that the tenant will have once this job is done,
        and all before it; what it raises refuses the job. Raises AlreadyThere if another gateway
        has accepted a job with this key meanwhile.
        """
        accepted = {"idempotency_key": idempotency_key, "digest": digest, "state": "queued",
                    "readers": json.dumps(sorted(set(readers) - {EVERYBODY}))}  # fmt: skip
        with self._write() as write:
            if check is not None:
                self._check_stored(write, job_id, check)
            job = jobs.update().where(jobs.c.job_id == job_id)
            if not write.execute(job.values(accepted)).rowcount:
                raise DatabaseUnavailable(
                    "the upload was interrupted: send it again", retry_after_s=1.0
                )
            change = documents.update().where(documents.c.job_id == job_id)
            write.execute(change.values(state="pending"))

    def drop(self, job_id: str) -> None:
        """Forget a job that was not accepted."""
        with self._freeing() as write:
            write.execute(jobs.delete().where(~_ACCEPTED, jobs.c.job_id == job_id))

    def find(self, tenant: str, idempotency_key: str) -> tuple[str, bytes] | None:
        """Return (job_id, digest) of the job that was accepted with this key, None if none was."""
        named = jobs.c.tenant == tenant, jobs.c.idempotency_key == idempotency_key
        with self._read() as read:
            row = read.execute(sa.select(jobs.c.job_id, jobs.c.digest).where(*named)).first()
        return None if row is None else (row.job_id, row.digest)

    def prune(self, before: float) -> int:
        """Forget jobs that ended before a time, in Unix seconds; return how many."""
        ended = jobs.c.state.not_in(["spooling", *OPEN_STATES])
        with self._write() as write:
            return write.execute(jobs.delete().where(jobs.c.updated < before, ended)).rowcount

    # -- jobs ------------------------------------------------------------------------------------

    def get(
        self, job_id: str, tenant: str, max_errors: int = MAX_ERRORS, view: View = EVERYTHING
    ) -> StoredJob | None:
        """Return a job that a view shows, all of its documents."""
        with self._read() as read:
            shown = _shown(read, tenant, view)
            row = read.execute(_JOB.where(jobs.c.job_id == job_id, _ACCEPTED, shown)).first()
            return None if row is None else _load(read, row, shown, max_errors)

    def page(
        self, tenant: str, limit: int, after: str | None, state: str | None, view: View = EVERYTHING
    ) -> tuple[list[StoredJob], str | None]:
        """Return jobs, newest first, of those older than the job `after`: those whose documents
        a view shows, all of them; and the last one's id, None: there are no more. Raises
        InvalidRequest if there is no job `after`."""
        query = _JOB.where(_ACCEPTED)
        if state is not None:
            query = query.where(jobs.c.state == state)
        with self._read() as read:
            shown = _shown(read, tenant, view)
            if after is not None:
                named = sa.select(jobs.c.number).where(jobs.c.job_id == after, shown)
                if (number := read.scalar(named)) is None:
                    said = "cursor: pass the next_cursor of the page before, or leave it out"
                    raise InvalidRequest(said, field="cursor")
                query = query.where(jobs.c.number < number)
            rows = read.execute(
                query.where(shown).order_by(jobs.c.number.desc()).limit(limit + 1)
            ).all()
            found = [_load(read, row, shown) for row in rows[:limit]]
        return found, rows[limit - 1].job_id if len(rows) > limit else None

    def states(self) -> dict[str, int]:
        query = sa.select(jobs.c.state, sa.func.count()).where(_ACCEPTED).group_by(jobs.c.state)
        with self._read() as read:
            return {state: count for state, count in read.execute(query)}

    def cancel(self, job_id: str) -> list[tuple[Scope, str]]:
        """Cancel a job's documents that are not done; returns those that are indexed, and stay."""
        indexed = sa.select(jobs.c.tenant, documents.c.collection, documents.c.doc_id)
        indexed = indexed.select_from(OF_TENANTS).where(in_state("indexed"))
        with self._freeing() as write:
            write.execute(jobs.update().where(jobs.c.job_id == job_id).values(cancelled=1))
            rows = write.execute(indexed.where(jobs.c.job_id == job_id)).all()
            change = documents.update().where(documents.c.job_id == job_id, UNFINISHED)
            write.execute(change.values(state="cancelled", **FREE))
            update_job_states(write, [job_id])
        return [(Scope(tenant, collection), doc_id) for tenant, collection, doc_id in rows]

    def cancel_documents(self, scope: Scope, doc_ids: Sequence[str] | None) -> dict[str, str]:
        """Cancel documents that are deleted before they were indexed: these, or all of the scope's
        collection, that its view shows and its pen changes. Returns their readers by their ids."""
        named = sa.true() if doc_ids is None else among(documents.c.doc_id, doc_ids)
        columns = documents.c["number", "job_id", "collection", "doc_id", "meta"]
        waiting = sa.select(*columns, *_PEN)
        waiting = waiting.select_from(OF_TENANTS)
        waiting = waiting.where(in_state("pending"), jobs.c.tenant == scope.tenant)
        with self._freeing() as write:
            query = waiting.where(documents.c.collection == scope.collection, named)
            found: dict[int, tuple[str, str, str]] = {}  # number → job, document, readers
            for row in write.execute(query):
                sent = json.loads(row.meta or "{}")
                writers = sent.get("writers", pen_of(row.view, row.writes, row.takes).writers)
                shown = scope.view.shows(readers := sent.get("readers", EVERYBODY))
                if shown and scope.pen.changes(writers):
                    found[row.number] = row.job_id, row.doc_id, readers
            job_ids = [job_id for job_id, _, _ in found.values()]
            lock_jobs(write, job_ids)
            numbers = among(documents.c.number, list(found))
            change = documents.update().where(numbers, in_state("pending"))
            error = "deleted before it was indexed"
            write.execute(change.values(state="cancelled", error=error, **FREE))
            update_job_states(write, job_ids)
        return {doc_id: readers for _, doc_id, readers in found.values()}

    def warnings(self, tenant: str, collection: str, doc_id: str) -> list[DocumentWarning]:
        """Return what is not in the text of a stored document, or may be wrong there."""
        key = sizes.c.tenant == tenant, sizes.c.collection == collection, sizes.c.doc_id == doc_id
        with self._read() as read:
            stored = read.scalar(sa.select(sizes.c.warnings).where(*key))
        return _read_warnings(stored or NO_WARNINGS)

    def of_source(self, tenant: str, source: str) -> list[tuple[str, str, str]]:
        """Return (collection, doc_id, SHA-256) of documents that came from a source last."""
        query = sa.select(*sizes.c["collection", "doc_id", "sha256"])
        query = query.where(sizes.c.tenant == tenant, sizes.c.source == source)
        with self._read() as read:
            rows = read.execute(query.order_by(*sizes.c["collection", "doc_id"]))
            return [(row.collection, row.doc_id, row.sha256) for row in rows]

    def rename(self, scope: Scope, doc_id: str, name: str) -> None:
        """Remember of a document under another id what is known of its ingestion."""
        of_scope = sizes.c.tenant == scope.tenant, sizes.c.collection == scope.collection
        with self._write() as write:
            write.execute(sizes.delete().where(*of_scope, sizes.c.doc_id == name))
            change = sizes.update().where(*of_scope, sizes.c.doc_id == doc_id)
            write.execute(change.values(doc_id=name))

    def _check_stored(
        self, write: sa.Connection, job_id: str, check: Callable[[int, int], None]
    ) -> None:
        tenant = write.scalar(sa.select(jobs.c.tenant).where(jobs.c.job_id == job_id))
        if tenant is None:  # forgotten, which `accept` says
            return
        if self._shared:
            # Until this transaction ends no other one accepts a job of the tenant, and what others
            # have committed is seen. Two tenants of the same number only wait for each other.
            number = zlib.crc32(tenant.encode()) - (1 << 31)
            pair = sa.cast(ACCEPTING, sa.Integer), sa.cast(number, sa.Integer)
            write.execute(sa.select(sa.func.pg_advisory_xact_lock(*pair)))
        columns = ("collection", "doc_id", "bytes")
        stored = sa.select(*sizes.c[columns]).where(sizes.c.tenant == tenant)
        coming = sa.select(*documents.c[columns]).select_from(OF_TENANTS)
        coming = coming.where(
            jobs.c.tenant == tenant, sa.or_(in_state("pending"), documents.c.job_id == job_id)
        )
        held = sa.union_all(stored, coming).subquery()
        most = sa.select(sa.func.max(held.c.bytes).label("bytes"))
        most_of = most.group_by(held.c.collection, held.c.doc_id).subquery()
        total = sa.func.coalesce(sa.func.sum(most_of.c.bytes), 0)
        count, size = write.execute(sa.select(sa.func.count(), total).select_from(most_of)).one()
        check(int(count), int(size))


def _shown(read: sa.Connection, tenant: str, view: View) -> sa.ColumnElement[bool]:
    """Return a condition on jobs: they are the tenant's, and a view shows all of their
    documents."""
    of_tenant = jobs.c.tenant == tenant
    if view.groups is None:
        return of_tenant
    there = read.scalars(sa.select(jobs.c.readers).where(of_tenant).distinct()).all()
    shown = [each for each in there if all(map(view.shows, json.loads(each)))]
    return sa.and_(of_tenant, among(jobs.c.readers, shown))


def _load(
    read: sa.Connection,
    row: sa.Row[Any],
    shown: sa.ColumnElement[bool],
    max_errors: int = MAX_ERRORS,
) -> StoredJob:
    """Return a job from its row of _JOB and the rows of its documents, with so many errors. What
    comes before it is told of jobs that are shown."""
    mine = documents.c.job_id == row.job_id
    kinds = documents.c["state", "change"]
    sums = sa.func.count().label("n"), sa.func.sum(documents.c.chunks).label("chunks")
    counted = sa.select(*kinds, *sums).where(mine).group_by(*kinds).order_by(*kinds)
    states, changes, chunks = Counter[str](), Counter[str](), 0
    for part in read.execute(counted):
        states[part.state] += part.n
        chunks += part.chunks
        if part.change is not None and part.state not in ("pending", "failed", "dead"):
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
            (collection, WarnedDocument(doc_id=name, warnings=_read_warnings(said)))
            for collection, name, said in told(documents.c.warnings, *has_warnings)
        ],
        WorkAhead() if job.ended else _ahead(read, row.job_id, shown),
        bool(states["pending"]),
        pen_of(row.view, row.writes, row.takes).writers,
    )


def _read_warnings(stored: str) -> list[DocumentWarning]:
    return [DocumentWarning(**one) for one in json.loads(stored)]


def _ahead(read: sa.Connection, job_id: str, shown: sa.ColumnElement[bool]) -> WorkAhead:
    """Sum up the documents of jobs that are shown, and are not done, up to the job's last: oldest
    come first."""
    ends = sa.select(sa.func.min(documents.c.number), sa.func.max(documents.c.number))
    first, last = read.execute(ends.where(documents.c.job_id == job_id)).one()
    if last is None:
        return WorkAhead()
    indexed, known = documents.c.state == "indexed", documents.c.change.is_not(None)

    def total(where: sa.ColumnElement[bool], column: sa.Column[Any]) -> sa.ColumnElement[Any]:
        return sa.func.coalesce(sa.func.sum(column).filter(where), 0)

    query = sa.select(
        total(~indexed & ~known, documents.c.bytes), total(~indexed & known, documents.c.bytes),
        total(indexed & (documents.c.change != "unchanged"), documents.c.tokens),
        total(documents.c.number < first, documents.c.number),
    ).select_from(OF_TENANTS).where(UNFINISHED, documents.c.number <= last, shown)  # fmt: skip
    new, old, tokens, earlier = read.execute(query).one()
    return WorkAhead(float(new), float(old), float(tokens), last, bool(earlier))
