"""How many bytes every document takes, by which tenants' quotas are counted."""

from __future__ import annotations

from collections.abc import Iterable

from service.gateway.documents.jobs.job_database import JobDatabase
from service.gateway.documents.jobs.job_records import IngestDocument


def record_sizes(database: JobDatabase, documents: Iterable[IngestDocument]) -> None:
    """Note the sizes of documents that came in without a job. Blocks."""
    with database.transaction() as write:
        write.executemany(
            "INSERT INTO sizes VALUES (?, ?, ?, ?) ON CONFLICT (tenant, collection, doc_id) "
            "DO UPDATE SET bytes = excluded.bytes",
            sorted((*item.key, item.size) for item in documents),
        )
