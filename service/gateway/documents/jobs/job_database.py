"""What the parts of the job store share: a gateway's rows in the database, and what seals them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from retriever.sql.expressions import among
from service.gateway.documents.jobs.spool_folder import SpoolFolder
from service.gateway.encryption.sealed_rows import SealedRows
from service.gateway.service_database import ServiceDatabase
from service.gateway.tables import documents, freed_files, jobs

# Frees the space of a document that is no longer needed here.
FREE: dict[str, Any] = {"kind": None, "meta": None, "content": None, "spooled": None}
OF_TENANTS = documents.join(jobs)


class JobDatabase:
    """Thread-safe; every call blocks."""

    def __init__(self, database: ServiceDatabase, spool: SpoolFolder) -> None:
        self.database = database
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
        with self.database.write() as write:
            yield write
            if self.shared:  # without files
                return
            freed = write.scalars(sa.select(freed_files.c.name)).all()
        if freed:
            self.spool.remove(freed)
            with self.database.write() as write:
                write.execute(freed_files.delete().where(among(freed_files.c.name, freed)))

    def meta(self, row: Any) -> str | None:
        """Return what was sent with a document, as JSON."""
        return self.sealed.opened_text(row.meta, *meta_place(row.job_id, row))


def meta_place(job_id: str, document: Any) -> tuple[object, ...]:
    """Return where what was sent with a document is sealed for."""
    return "job meta", job_id, document.collection, document.doc_id


def content_place(job_id: str, document: Any) -> tuple[object, ...]:
    """Return where a document's content is sealed for."""
    return "job content", job_id, document.collection, document.doc_id


def warnings_place(tenant: str, collection: str, doc_id: str) -> tuple[object, ...]:
    """Return where the warnings of a stored document are sealed for."""
    return "warnings", tenant, collection, doc_id
