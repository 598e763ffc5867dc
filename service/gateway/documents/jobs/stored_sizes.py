"""How many bytes every document takes, by which tenants' quotas are counted."""

from __future__ import annotations

from collections.abc import Iterable

from service.gateway.documents.jobs.job_database import JobDatabase
from service.gateway.documents.jobs.job_records import SpooledDocument


def record_sizes(database: JobDatabase, documents: Iterable[SpooledDocument]) -> None:
    """Note the sizes of documents that came in without a job. Blocks."""
    with database.transaction() as write:
        write.executemany(
            "INSERT INTO sizes VALUES (?, ?, ?, ?) ON CONFLICT (tenant, collection, doc_id) "
            "DO UPDATE SET bytes = excluded.bytes",
            sorted((*item.key, len(item.content or b"")) for item in documents),
        )
