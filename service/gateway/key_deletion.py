"""Deletes the keys of a tenant, and what they have made unreadable, but for KV and backups."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from retriever.catalog.catalog import Catalog
from retriever.catalog.tables import catalog_database
from service.gateway.encryption.tenant_keys import TenantKeys
from service.gateway.service_database import jobs_database, shared_database
from service.gateway.tables import jobs, purges, sizes
from service.settings import Settings


def delete_keys(settings: Settings, keys: TenantKeys, tenant: str) -> dict[str, Any]:
    """Delete a tenant's keys, then the rows that nobody can read any more.

    The keys go first: should this be interrupted, nothing is readable, and it can be called again.

    Args:
        settings: of the service.
        keys: started.
        tenant: whose.

    Returns:
        The receipt: its id, the tenant, ids of the keys, numbers of documents and chunks, and when.
    """
    key_ids = [key_id.hex() for key_id in keys.delete(tenant)]
    url, folder = settings.database, settings.data_dir
    catalog = Catalog(catalog_database(url or folder / "catalog.db", connections=1))
    catalog.start()
    try:
        documents, chunks = catalog.drop_tenant(tenant)
        catalog.purge()
    finally:
        catalog.close()
    database = (
        shared_database(url, connections=1) if url else jobs_database(folder / "jobs.sqlite3")
    )
    database.start()
    try:
        with database.write() as write:
            write.execute(jobs.delete().where(jobs.c.tenant == tenant))
            write.execute(purges.delete().where(purges.c.tenant == tenant))
            write.execute(sizes.delete().where(sizes.c.tenant == tenant))
        database.scrub()
    finally:
        database.close()
    return {
        "receipt_id": uuid.uuid4().hex,
        "tenant": tenant,
        "key_ids": key_ids,
        "documents": documents,
        "chunks": chunks,
        "completed": datetime.now(UTC).isoformat(timespec="seconds"),
    }
