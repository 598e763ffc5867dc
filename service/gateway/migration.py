"""Copies a data folder's databases to PostgreSQL: all of them in one transaction, or nothing."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table

from retriever.catalog.migration import copy_catalog
from retriever.catalog.tables import catalog_database
from retriever.errors import RetrieverError
from retriever.sql.copying import copy_table, go_on_after
from retriever.sql.expressions import upsert
from retriever.sql.revisions import Schema
from service.errors import InvalidSetting
from service.gateway.data_folder import lock_folder, own_secret
from service.gateway.documents import membership
from service.gateway.encryption.tenant_keys import FILE as KEYS_FILE
from service.gateway.encryption.tenant_keys import require_no_keys, tenant_keys_of
from service.gateway.service_database import (
    ServiceDatabase,
    jobs_database,
    shared_database,
    tables_of_plugins,
)
from service.gateway.tables import (
    ENCRYPTION,
    KEYS,
    NAMESPACE,
    contents,
    documents,
    jobs,
    keys,
    purges,
    receipts,
    secrets,
    sizes,
    tenant_keys,
)
from service.settings import Settings


def migrate(settings: Settings) -> dict[str, int]:
    """Copy catalog, jobs, deletions, receipts, keys and plugins' tables; the folder stays as it is.

    KV that is encrypted stays readable: the keys of tenants go along.

    Args:
        settings: No gateway may serve from their `data_dir`. `database` is an empty one of
            PostgreSQL, or one that no gateway has written to. The master key is the folder's.

    Returns:
        How many documents, chunks, jobs, receipts, purges and keys were copied.

    Raises:
        InvalidSetting: The folder or the database cannot be used, or the database holds something.
    """
    data_dir, url = settings.data_dir, settings.database
    if not (data_dir / "catalog.db").is_file():
        raise InvalidSetting(f"{data_dir} holds no catalog: give the --data-dir of a service")
    if not settings.encrypted:
        require_no_keys(settings, None)
    keys = tenant_keys_of(settings, None)
    lock = lock_folder(data_dir)
    shared = shared_database(url, connections=2)
    catalog = catalog_database(url, connections=2)
    try:
        if keys is not None:
            keys.start()
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
        if keys is not None:
            keys.close()
        lock.close()


def _copy(data_dir: Path, write: Connection, gateway_id: str) -> dict[str, int]:
    for table in ("documents", "jobs", "keys", "receipts"):
        where = table if table == "documents" else f"{NAMESPACE}.{table}"
        if write.exec_driver_sql(f"SELECT 1 FROM {where} LIMIT 1").first() is not None:
            raise InvalidSetting(f"the database holds {table} already: give an empty one")
    counts = copy_catalog(data_dir / "catalog.db", write)
    write.exec_driver_sql(f"SET LOCAL search_path TO {NAMESPACE}, public")
    counts |= _copy_jobs(data_dir, write)
    counts["keys"] = _copy_file(data_dir / "keys.sqlite3", KEYS, write, keys)
    if (encryption := data_dir / KEYS_FILE).is_file():
        _copy_file(encryption, ENCRYPTION, write, tenant_keys)
    for file, schema in tables_of_plugins().items():
        if (data_dir / file).is_file():
            _copy_file(data_dir / file, schema, write, *schema.metadata.sorted_tables)
    upsert(write, secrets, [{"name": "tenants", "value": own_secret(data_dir)}])
    membership.expect(write, gateway_id, str(data_dir))
    return counts


def _copy_jobs(data_dir: Path, write: Connection) -> dict[str, int]:
    def with_content(row: dict[str, Any]) -> dict[str, Any]:
        if (name := row["spooled"]) is None:
            return row
        return row | {"content": (data_dir / "spool" / name).read_bytes(), "spooled": None}

    database = jobs_database(data_dir / "jobs.sqlite3")
    database.start()  # creates it, or brings it up to date
    try:
        with database.read() as source:
            counts = {"jobs": copy_table(source, write, jobs, where=jobs.c.state != "spooling")}
            accepted = documents.c.state != "spooling"
            copy_table(source, write, documents, where=accepted, change=with_content)
            for table in (sizes, purges, contents, receipts):
                counts[table.name] = copy_table(source, write, table)
            for table in (jobs, documents, purges):
                go_on_after(source, write, table, "number")
    finally:
        database.close()
    return {name: counts[name] for name in ("jobs", "receipts", "purges")}


def _copy_file(file: Path, schema: Schema, write: Connection, *tables: Table) -> int:
    """Copy tables of a file that holds this schema; return their rows."""
    database = ServiceDatabase(file, [schema])
    database.start()
    try:
        with database.read() as source:
            return sum(copy_table(source, write, table) for table in tables)
    finally:
        database.close()
