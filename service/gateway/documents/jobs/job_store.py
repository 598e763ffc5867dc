"""Ingest jobs on disk. A job that was accepted is committed, and survives a crash at any point.

    document   spooling ── pending ── chunked, embedded, indexed ──> indexed ── KV stored ──> done
                              └─────────── error ─────────────────────┴──> failed, dead, cancelled

A job is queued, then running, then ended: dead if the worker died of one of its documents, failed
if one failed, cancelled if it was cancelled, else succeeded. Its state is computed from its
documents' states in the same transaction that changes them.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from retriever.sql.connection import Connection
from service.errors import DatabaseUnavailable
from service.gateway.documents.jobs import job_rows
from service.gateway.documents.jobs.job_database import JobDatabase
from service.gateway.documents.jobs.job_records import (
    OPEN_STATES,
    IngestDocument,
    Job,
    JobPage,
    SpooledFile,
)
from service.gateway.documents.jobs.job_rows import (
    MAX_ERRORS,
    load_job,
    lock_jobs,
    update_job_states,
)
from service.gateway.documents.jobs.spool_folder import SpoolFolder
from service.gateway.documents.jobs.webhooks import add_events

# Frees the space of a document that is no longer needed here.
_MOST = 2**62
_FREE = "kind = NULL, meta = NULL, content = NULL, spooled = NULL"


class JobStore:
    """Thread-safe; every call blocks. The database must have been started."""

    def __init__(
        self, database: JobDatabase, spool: SpoolFolder, *, with_events: bool = False
    ) -> None:
        """`with_events`: for each job that ends an event is owed to the webhook."""
        self._database = database
        self._spool = spool
        self._with_events = with_events
        me = database.gateway_id
        self._shared = bool(me)
        # Others' documents are left alone.
        self._mine = " AND owner = ?" if me else ""
        self._me: tuple[str, ...] = (me,) if me else ()

    def start(self) -> None:
        """Forget what a process that died had not accepted; before there are uploads."""
        self._spool.start()
        with self._freeing() as write:
            write.execute(f"DELETE FROM jobs WHERE state = 'spooling'{self._mine}", self._me)
        with self._database.transaction() as read:
            rows = read.execute("SELECT spooled FROM documents WHERE spooled IS NOT NULL")
            self._spool.sweep({row["spooled"] for row in rows})

    # -- acceptance ------------------------------------------------------------------------------

    def begin(self, tenant: str) -> str:
        """Create a job that is invisible until `accept`; returns its id."""
        job_id, now = uuid.uuid4().hex, time.time()
        with self._database.transaction() as write:
            self._database.insert_job(write, job_id, tenant, now)
        return job_id

    def spool(self, job_id: str, documents: Sequence[IngestDocument]) -> None:
        """Write documents of a job that is not accepted yet. Their files are the job's now."""
        with self._database.transaction() as write:
            write.executemany(
                "INSERT INTO documents (job_id, collection, doc_id, bytes, kind, meta, content, "
                "spooled, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'spooling')",
                [
                    (job_id, d.collection, d.doc_id, d.size, d.kind, d.meta, *self._content(d))
                    for d in documents
                ],
            )
        files = [d.content for d in documents if isinstance(d.content, SpooledFile)]
        if not self._shared:
            self._spool.claim(file.path.name for file in files)

    def accept(
        self,
        job_id: str,
        idempotency_key: str | None,
        digest: bytes,
        *,
        check: Callable[[int, int], None] | None = None,
    ) -> None:
        """Commit the job: from here on it is worked off, whatever happens to this process.

        Args:
            job_id: Of `begin`.
            idempotency_key: Another job of the tenant may not have it.
            digest: Of its documents.
            check: Called with (documents, bytes) that the tenant will have once this job is done,
                and all before it; what it raises refuses the job. Jobs of the tenant are accepted
                one at a time then, over all gateways.

        Raises:
            AlreadyAccepted: Another gateway has accepted a job with this key meanwhile.
            DatabaseUnavailable: PostgreSQL does not answer, or has forgotten the job because this
                gateway was silent for too long.
        """
        with self._database.transaction() as write:
            if check is not None:
                self._check_stored(write, job_id, check)
            done = write.execute(
                "UPDATE jobs SET idempotency_key = ?, digest = ?, state = 'queued' "
                "WHERE job_id = ?",
                (idempotency_key, digest, job_id),
            )
            if not done.rowcount:
                raise DatabaseUnavailable(
                    "the upload was interrupted: send it again", retry_after_s=1.0
                )
            write.execute("UPDATE documents SET state = 'pending' WHERE job_id = ?", (job_id,))

    def drop(self, job_id: str) -> None:
        """Forget a job that was not accepted."""
        with self._freeing() as write:
            write.execute("DELETE FROM jobs WHERE state = 'spooling' AND job_id = ?", (job_id,))

    def find(self, tenant: str, idempotency_key: str) -> tuple[str, bytes] | None:
        """(job_id, digest) of the job that was accepted with this key, None if there is none."""
        with self._database.transaction() as read:
            row = read.execute(
                "SELECT job_id, digest FROM jobs WHERE tenant = ? AND idempotency_key = ?",
                (tenant, idempotency_key),
            ).fetchone()
        return None if row is None else (row["job_id"], row["digest"])

    def prune(self, before: float) -> int:
        """Forget jobs that ended before a time, in Unix seconds; returns how many."""
        with self._database.transaction() as write:
            return write.execute(
                "DELETE FROM jobs WHERE updated < ? AND state NOT IN ('spooling', ?, ?)",
                (before, *OPEN_STATES),
            ).rowcount

    # -- jobs ------------------------------------------------------------------------------------

    def get(self, job_id: str, tenant: str, max_errors: int = MAX_ERRORS) -> Job | None:
        with self._database.transaction() as read:
            row = read.execute(
                "SELECT * FROM jobs WHERE job_id = ? AND tenant = ? AND state != 'spooling'",
                (job_id, tenant),
            ).fetchone()
            return None if row is None else load_job(read, row, max_errors)

    def page(self, tenant: str, limit: int, before: int | None, state: str | None) -> JobPage:
        """Jobs, newest first, of those with a number below `before`."""
        with self._database.transaction() as read:
            rows = read.execute(
                "SELECT * FROM jobs WHERE tenant = ? AND state != 'spooling' "
                "AND number < coalesce(CAST(? AS BIGINT), ?) "
                "AND state = coalesce(CAST(? AS TEXT), state) ORDER BY number DESC LIMIT ?",
                (tenant, before, _MOST, state, limit + 1),
            ).fetchall()
            jobs = [load_job(read, row) for row in rows[:limit]]
        return JobPage(jobs, str(rows[limit - 1]["number"]) if len(rows) > limit else None)

    def states(self) -> dict[str, int]:
        """How many jobs of all tenants are in each state."""
        with self._database.transaction() as read:
            rows = read.execute("SELECT state, count(*) AS n FROM jobs GROUP BY state").fetchall()
        return {row["state"]: row["n"] for row in rows if row["state"] != "spooling"}

    def cancel(self, job_id: str) -> None:
        """Cancel a job's documents that are not done; indexed ones stay indexed, without KV."""
        with self._freeing() as write:
            write.execute("UPDATE jobs SET cancelled = 1 WHERE job_id = ?", (job_id,))
            write.execute(
                f"UPDATE documents SET state = 'cancelled', {_FREE} "
                "WHERE job_id = ? AND state IN ('pending', 'indexed')",
                (job_id,),
            )
            self._update_states(write, [job_id])

    def cancel_documents(
        self, tenant: str, collection: str, doc_ids: Sequence[str] | None
    ) -> list[str]:
        """Cancel documents that are deleted before they were indexed.

        Args:
            tenant: Whose they are.
            collection: Where they were to go.
            doc_ids: Their ids; None: all of the collection.

        Returns:
            The ids of those that were waiting.
        """
        with self._freeing() as write:
            named = "" if doc_ids is None else f"AND doc_id {write.in_texts}"
            values = [] if doc_ids is None else [write.listed(doc_ids)]
            rows = write.execute(
                "SELECT documents.number, job_id, doc_id FROM documents JOIN jobs USING (job_id) "
                f"WHERE documents.state = 'pending' AND tenant = ? AND collection = ? {named}",
                (tenant, collection, *values),
            ).fetchall()
            lock_jobs(write, [row["job_id"] for row in rows])
            write.executemany(
                f"UPDATE documents SET state = 'cancelled', {_FREE}, "
                "error = 'deleted before it was indexed' WHERE number = ? AND state = 'pending'",
                [(row["number"],) for row in rows],
            )
            self._update_states(write, [row["job_id"] for row in rows])
        return sorted({row["doc_id"] for row in rows})

    # -- documents -------------------------------------------------------------------------------

    def pending(self, limit: int, max_bytes: int) -> list[IngestDocument]:
        """The next documents to index, oldest first: at least one, then up to `max_bytes`."""
        return self._unfinished("pending", limit, max_bytes)

    def indexed(self, limit: int) -> list[IngestDocument]:
        """The next documents whose KV must be computed, oldest first."""
        return self._unfinished("indexed", limit, None)

    def still_in(self, state: str, numbers: Sequence[int]) -> set[int]:
        """Those of the documents that are in this state; others may have been cancelled."""
        with self._database.transaction() as read:
            rows = read.execute(
                f"SELECT number FROM documents WHERE state = ? AND number {read.in_numbers}"
                f"{self._mine}",
                (state, read.listed(numbers), *self._me),
            )
            return {row["number"] for row in rows}

    def set_indexed(self, documents: Sequence[tuple[int, str, int, int]]) -> None:
        """Documents are in the catalog and the index now.

        Args:
            documents: (number, change, chunks, tokens); change is created, updated or unchanged.
        """
        values = [(*indexed, number) for number, *indexed in documents]
        mine = self._mine.replace("owner", "documents.owner")
        with self._freeing() as write:
            write.executemany(
                "INSERT INTO sizes SELECT tenant, collection, doc_id, bytes FROM documents "
                f"JOIN jobs USING (job_id) WHERE documents.number = ?{mine} "
                "ON CONFLICT (tenant, collection, doc_id) DO UPDATE SET bytes = excluded.bytes",
                [(number, *self._me) for number, *_ in documents],
            )
            free = ", owner = ''" if self._shared else ""
            assignment = f"state = 'indexed', {_FREE}, change = ?, chunks = ?, tokens = ?{free}"
            self._update_documents(write, assignment, values)

    def set_done(self, numbers: Sequence[int]) -> None:
        with self._database.transaction() as write:
            self._update_documents(write, "state = 'done'", [(number,) for number in numbers])

    def set_failed(self, documents: Sequence[tuple[int, str]], state: str = "failed") -> None:
        """Documents cannot be stored.

        Args:
            documents: (number, what is wrong).
            state: "failed", or "dead" if the worker died of them.
        """
        values = [(state, error, number) for number, error in documents]
        with self._freeing() as write:
            self._update_documents(write, f"state = ?, {_FREE}, error = ?", values)

    def scrub(self) -> None:
        """Overwrite what was deleted in the database's files."""
        self._database.scrub()

    @contextmanager
    def _freeing(self) -> Iterator[Connection]:
        """A transaction after which the files that no row names any more are removed.

        Should the process die before they are, they are removed after the next one.
        """
        with self._database.transaction() as write:
            yield write
            if self._shared:  # without files
                return
            freed = [row["name"] for row in write.execute("SELECT name FROM freed_files")]
        if freed:
            self._spool.remove(freed)
            with self._database.transaction() as write:
                write.executemany(
                    "DELETE FROM freed_files WHERE name = ?", [(name,) for name in freed]
                )

    def _check_stored(
        self, write: Connection, job_id: str, check: Callable[[int, int], None]
    ) -> None:
        row = write.execute("SELECT tenant FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
        if row is None:  # forgotten, which `accept` says
            return
        tenant = row["tenant"]
        self._database.one_acceptance(write, tenant)
        documents, size = write.execute(
            "WITH held AS (SELECT collection, doc_id, bytes FROM sizes WHERE tenant = ? "
            "UNION ALL SELECT collection, doc_id, bytes FROM documents JOIN jobs USING "
            "(job_id) WHERE tenant = ? AND (documents.state = 'pending' OR job_id = ?)) "
            "SELECT count(*), coalesce(sum(most), 0) FROM "
            "(SELECT max(bytes) AS most FROM held GROUP BY collection, doc_id) AS documents",
            (tenant, tenant, job_id),
        ).fetchone()
        check(int(documents), int(size))

    def _update_documents(
        self, write: Connection, assignment: str, values: Sequence[tuple[Any, ...]]
    ) -> None:
        """Update documents that were not cancelled; the last value of each row is the number."""
        if not values:
            return
        rows = write.execute(
            f"SELECT DISTINCT job_id FROM documents WHERE number {write.in_numbers}",
            (write.listed([row[-1] for row in values]),),
        ).fetchall()
        job_ids = [row["job_id"] for row in rows]
        lock_jobs(write, job_ids)
        write.executemany(
            f"UPDATE documents SET {assignment} "
            f"WHERE number = ? AND state IN ('pending', 'indexed'){self._mine}",
            [(*row, *self._me) for row in values],
        )
        self._update_states(write, job_ids)

    def _update_states(self, write: Connection, job_ids: Sequence[str]) -> None:
        ended = update_job_states(write, job_ids)
        if self._with_events:
            add_events(write, ended)

    def _unfinished(self, state: str, limit: int, max_bytes: int | None) -> list[IngestDocument]:
        out: list[IngestDocument] = []
        total = 0
        mine = self._mine.replace("owner", "documents.owner")
        with self._database.transaction() as read:
            if self._shared:
                job_rows.take(read, self._database.gateway_id, state, limit)
            rows = read.execute(
                "SELECT documents.number, job_id, tenant, collection, doc_id, kind, meta, content, "
                "chunks, spooled, bytes FROM documents JOIN jobs USING (job_id) "
                f"WHERE documents.state = ?{mine} ORDER BY documents.number LIMIT ?",
                (state, *self._me, limit),
            )
            for row in rows:
                total += row["bytes"]
                if out and max_bytes is not None and total > max_bytes:
                    break
                content = row["content"] or b""
                if row["spooled"] is not None:
                    content = SpooledFile(self._spool.path(row["spooled"]), row["bytes"])
                meta = json.loads(row["meta"] or "{}")
                out.append(
                    IngestDocument(
                        row["doc_id"], row["collection"], row["kind"] or "", content, **meta,
                        tenant=row["tenant"], number=row["number"], job_id=row["job_id"],
                        chunks=row["chunks"],
                    )
                )  # fmt: skip
        return out

    def _content(self, document: IngestDocument) -> tuple[bytes | None, str | None]:
        """The columns `content` and `spooled`; other gateways cannot read our files."""
        content = document.content
        if isinstance(content, bytes):
            return content, None
        return (content.path.read_bytes(), None) if self._shared else (None, content.path.name)
