"""Copies a data folder's databases to PostgreSQL: all of them in one transaction, or nothing."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from retriever.catalog.migration import copy_catalog
from retriever.catalog.tables import catalog_database
from retriever.errors import RetrieverError
from retriever.sql.copying import copy_table, go_on_after
from retriever.sql.expressions import upsert
from service.errors import InvalidSetting
from service.gateway.audit.audit_log import FILE as AUDIT_FILE
from service.gateway.auth.secret_file import own_secret
from service.gateway.data_folder import lock_folder
from service.gateway.documents import membership
from service.gateway.encryption.tenant_keys import FILE as KEYS_FILE
from service.gateway.service_database import ServiceDatabase, jobs_database, shared_database
from service.gateway.tables import (
    AUDIT,
    KEYS,
    NAMESPACE,
    audit_entries,
    audit_heads,
    contents,
    documents,
    events,
    jobs,
    keys,
    purges,
    receipts,
    secrets,
    sizes,
)


def migrate(data_dir: Path, url: str) -> dict[str, int]:
    """Copy catalog, jobs, deletions, receipts, keys and audit log; the folder stays as it is.

    Args:
        data_dir: No gateway may serve from it.
        url: An empty database of PostgreSQL, or one that no gateway has written to.

    Returns:
        How many documents, chunks, jobs, receipts, purges and keys were copied.

    Raises:
        InvalidSetting: The folder or the database cannot be used, or the database holds something.
    """
    if not (data_dir / "catalog.db").is_file():
        raise InvalidSetting(f"{data_dir} holds no catalog: give the --data-dir of a service")
    if (data_dir / KEYS_FILE).is_file():
        raise InvalidSetting(
            f"{data_dir} is encrypted, and is not migrated: ingest its documents into a service "
            "on the database"
        )
    lock = lock_folder(data_dir)
    shared = shared_database(url, connections=2)
    catalog = catalog_database(url, connections=2)
    try:
        shared.start()
        catalog.start()
        with catalog.write() as write:
            counts = _copy(data_dir, write, gateway_id := uuid.uuid4().hex)
        # Its KV is right for what was copied: the gateway that starts from it may keep it.
        (data_dir / membership.ID_FILE).write_text(gateway_id, encoding="ascii")
        return counts
    except RetrieverError as error:
        raise InvalidSetting(str(error)) from error
    finally:
        shared.close()
        catalog.close()
        lock.close()


def _copy(data_dir: Path, write: Connection, gateway_id: str) -> dict[str, int]:
    for table in ("documents", "jobs", "keys", "receipts"):
        where = table if table == "documents" else f"{NAMESPACE}.{table}"
        if write.exec_driver_sql(f"SELECT 1 FROM {where} LIMIT 1").first() is not None:
            raise InvalidSetting(f"the database holds {table} already: give an empty one")
    counts = copy_catalog(data_dir / "catalog.db", write)
    write.exec_driver_sql(f"SET LOCAL search_path TO {NAMESPACE}, public")
    counts |= _copy_jobs(data_dir, write)
    counts["keys"] = _copy_keys(data_dir / "keys.sqlite3", write)
    if (audit := data_dir / AUDIT_FILE).is_file():
        _copy_audit(audit, write)
    upsert(write, secrets, [{"name": "tenants", "value": own_secret(data_dir)}])
    membership.expect(write, gateway_id, str(data_dir))
    return counts


def _copy_jobs(data_dir: Path, write: Connection) -> dict[str, int]:
    def with_content(row: dict[str, Any]) -> dict[str, Any]:
        if row["spooled"] is None:
            return row
        return row | {
            "content": (data_dir / "spool" / row["spooled"]).read_bytes(),
            "spooled": None,
        }

    database = jobs_database(data_dir / "jobs.sqlite3")
    database.start()  # creates it, or brings it up to date
    try:
        with database.read() as source:
            counts = {"jobs": copy_table(source, write, jobs, where=jobs.c.state != "spooling")}
            accepted = documents.c.state != "spooling"
            copy_table(source, write, documents, where=accepted, change=with_content)
            for table in (sizes, purges, contents, receipts, events):
                counts[table.name] = copy_table(source, write, table)
            for table in (jobs, documents, purges):
                go_on_after(source, write, table, "number")
    finally:
        database.close()
    return {name: counts[name] for name in ("jobs", "receipts", "purges")}


def _copy_keys(file: Path, write: Connection) -> int:
    database = ServiceDatabase(file, [KEYS])
    database.start()
    try:
        with database.read() as source:
            return copy_table(source, write, keys)
    finally:
        database.close()


def _copy_audit(file: Path, write: Connection) -> None:
    database = ServiceDatabase(file, [AUDIT])
    database.start()
    try:
        with database.read() as source:
            for table in (audit_entries, audit_heads):
                copy_table(source, write, table)
    finally:
        database.close()
