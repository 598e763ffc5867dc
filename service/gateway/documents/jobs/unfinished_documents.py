"""The documents of jobs that are not done: the queue that the stages of ingestion work off."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from retriever.readers import View
from retriever.sql.expressions import among, upsert
from service.gateway.documents.jobs.job_database import (
    FREE,
    OF_TENANTS,
    JobDatabase,
    content_place,
    warnings_place,
)
from service.gateway.documents.jobs.job_records import IndexedDocument, IngestDocument
from service.gateway.documents.jobs.job_rows import (
    NO_WARNINGS,
    UNFINISHED,
    in_state,
    in_turns,
    lock_jobs,
    said_place,
    take,
    update_job_states,
)
from service.gateway.tables import documents, jobs, sizes

_UNFINISHED = sa.select(
    *documents.c["number", "job_id", "collection", "doc_id", "bytes", "kind", "meta", "content",
                 "spooled", "chunks"], *jobs.c["tenant", "view"]
).select_from(OF_TENANTS).order_by(documents.c.number)  # fmt: skip


class UnfinishedDocuments:
    """Thread-safe; every call blocks."""

    def __init__(self, rows: JobDatabase) -> None:
        self._rows = rows

    def pending(
        self,
        limit: int,
        max_bytes: int,
        *,
        without: Collection[int] = (),
        largest: int | None = None,
    ) -> list[IngestDocument]:
        """Return the next documents to index, at least one, up to `max_bytes`."""
        wanted = sa.true() if largest is None else documents.c.bytes <= largest
        if without:
            wanted = sa.and_(wanted, ~among(documents.c.number, sorted(without)))
        return self._unfinished("pending", limit, max_bytes, wanted)

    def indexed(self, limit: int) -> list[IngestDocument]:
        """Return the next documents whose KV must be computed, in the same order."""
        return self._unfinished("indexed", limit, None, sa.true())

    def still_in(self, state: str, numbers: Sequence[int]) -> set[int]:
        """Return those of the documents that are in this state; others may have been cancelled."""
        found = in_state(state), among(documents.c.number, numbers), self._rows.mine(documents)
        with self._rows.database.read() as read:
            return set(read.scalars(sa.select(documents.c.number).where(*found)))

    def set_indexed(self, indexed: Sequence[IndexedDocument]) -> None:
        """Note that documents are in the catalog and the index now."""
        names = ("_number", "change", "chunks", "tokens", "warnings")
        free = {**FREE, "owner": ""} if self._rows.shared else FREE
        numbers = among(documents.c.number, [number for number, *_ in indexed])
        with self._rows.freeing() as write:
            columns = documents.c["collection", "doc_id", "bytes", "number", "job_id"]
            query = sa.select(jobs.c.tenant, *columns)
            query = query.select_from(OF_TENANTS).where(numbers, self._rows.mine(documents))
            rows = [dict(r) for r in write.execute(query.order_by(documents.c.number)).mappings()]
            values: list[dict[str, Any]] = [dict(zip(names, e, strict=True)) for e in indexed]
            own = {value["_number"]: value for value in values}
            for row in rows:
                tenant, named = row["tenant"], (row["collection"], row["doc_id"])
                value, job_id = own[row.pop("number")], row.pop("job_id")
                row["warnings"] = value["warnings"]
                if value["warnings"] != NO_WARNINGS:
                    where = warnings_place(tenant, *named)
                    row["warnings"] = self._rows.sealed.text(tenant, value["warnings"], *where)
                    where = said_place(job_id, *named)
                    value["warnings"] = self._rows.sealed.text(tenant, value["warnings"], *where)
            upsert(write, sizes, rows)
            self._update_documents(write, {"state": "indexed", **free}, values)

    def set_done(self, numbers: Sequence[int]) -> None:
        with self._rows.database.write() as write:
            self._update_documents(write, {"state": "done"}, [{"_number": n} for n in numbers])

    def set_failed(self, failed: Sequence[tuple[int, str]], state: str = "failed") -> None:
        """Note that documents cannot be stored."""
        values: list[dict[str, Any]] = [{"_number": n, "error": error} for n, error in failed]
        with self._rows.freeing() as write:
            if self._rows.sealed.keys is not None:
                self._seal_errors(write, values)
            self._update_documents(write, {"state": state, **FREE}, values)

    def _update_documents(
        self, write: sa.Connection, values: dict[str, Any], rows: Sequence[dict[str, Any]]
    ) -> None:
        """Update documents that were not cancelled."""
        if not rows:
            return
        numbers = among(documents.c.number, [row["_number"] for row in rows])
        job_ids = write.scalars(sa.select(documents.c.job_id).where(numbers).distinct()).all()
        lock_jobs(write, job_ids)
        change = documents.update().where(
            documents.c.number == sa.bindparam("_number"), UNFINISHED, self._rows.mine(documents)
        )
        write.execute(change.values(values), rows)
        update_job_states(write, job_ids)

    def _unfinished(
        self, state: str, limit: int, max_bytes: int | None, wanted: sa.ColumnElement[bool]
    ) -> list[IngestDocument]:
        out: list[IngestDocument] = []
        total = 0
        query = _UNFINISHED.where(in_state(state), self._rows.mine(documents), wanted)
        transaction = self._rows.database.write if self._rows.shared else self._rows.database.read
        with transaction() as connection:
            if self._rows.shared:
                take(connection, self._rows.me, state, limit)
            turns = in_turns(connection, query, limit, max_bytes)
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
        content = row.content or b""
        if row.spooled is not None:
            content = self._rows.spool.file(row.spooled, row.bytes)
        elif content:
            content = self._rows.sealed.opened_content(content, *content_place(row.job_id, row))
        sent = json.loads(self._rows.meta(row) or "{}")
        return IngestDocument(
            row.doc_id, row.collection, row.kind or "", content, **sent,
            tenant=row.tenant, number=row.number, job_id=row.job_id, chunks=row.chunks,
            view=View.named(row.view),
        )  # fmt: skip

    def _seal_errors(self, write: sa.Connection, values: list[dict[str, Any]]) -> None:
        """Errors of libraries may quote a file."""
        columns = documents.c["number", "job_id", "collection", "doc_id"]
        numbers = among(documents.c.number, [value["_number"] for value in values])
        query = sa.select(jobs.c.tenant, *columns).select_from(OF_TENANTS).where(numbers)
        rows = {row.number: row for row in write.execute(query)}
        for value in values:
            if (row := rows.get(value["_number"])) is not None:
                where = said_place(row.job_id, row.collection, row.doc_id)
                value["error"] = self._rows.sealed.text(row.tenant, value["error"], *where)
