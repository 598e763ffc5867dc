"""Copies a data folder's databases to PostgreSQL: all of them in one transaction, or nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, func, or_, select, text, true

from kvstitch.retriever.catalog import queries
from kvstitch.retriever.catalog import tables as catalog
from kvstitch.retriever.errors import DatabaseError, RetrieverError
from kvstitch.retriever.index import postings
from kvstitch.retriever.sql.database import Database
from kvstitch.retriever.sql.expressions import upsert
from kvstitch.service.errors import InvalidSetting
from kvstitch.service.gateway import tables
from kvstitch.service.gateway.data_folder import lock_folder, own_secret
from kvstitch.service.gateway.documents import membership
from kvstitch.service.gateway.encryption.tenant_keys import FILE as KEYS_FILE
from kvstitch.service.gateway.encryption.tenant_keys import require_no_keys, tenant_keys_of
from kvstitch.service.gateway.service_database import (
    ServiceDatabase,
    jobs_database,
    shared_database,
    tables_of_plugins,
)
from kvstitch.service.settings import Settings

Row = dict[str, Any]


def migrate(settings: Settings) -> dict[str, int]:
    """Copy catalog, jobs, deletions, receipts, keys and plugins' tables; the folder stays as it is.

    KV that is encrypted stays readable: the keys of tenants go along.
    """
    data_dir, url = settings.data_dir, settings.database
    if not (data_dir / "catalog.db").is_file():
        raise InvalidSetting(f"{data_dir} holds no catalog: give the --data-dir of a service")
    if not settings.encrypted:
        require_no_keys(settings, None)
    keys = tenant_keys_of(settings, None)
    lock = lock_folder(data_dir)
    shared = shared_database(url, connections=2)
    target = catalog.catalog_database(url, connections=2)
    try:
        if keys is not None:
            keys.start()
        shared.start()
        target.start()
        with target.write() as write:
            counts = _copy(data_dir, write, gateway_id := uuid.uuid4().hex)
        # Its KV is right for what was copied: the gateway that starts from it may keep it.
        (data_dir / membership.ID_FILE).write_text(gateway_id, encoding="ascii")
        return counts
    except RetrieverError as error:
        raise InvalidSetting(str(error)) from error
    finally:
        shared.close()
        target.close()
        if keys is not None:
            keys.close()
        lock.close()


def _copy(data_dir: Path, write: Connection, gateway_id: str) -> dict[str, int]:
    for table in ("documents", "jobs", "keys", "receipts"):
        where = table if table == "documents" else f"{tables.NAMESPACE}.{table}"
        if write.exec_driver_sql(f"SELECT 1 FROM {where} LIMIT 1").first() is not None:
            raise InvalidSetting(f"the database holds {table} already: give an empty one")
    counts = _read(catalog.catalog_database(data_dir / "catalog.db"), partial(_copy_catalog, write))
    write.exec_driver_sql(f"SET LOCAL search_path TO {tables.NAMESPACE}, public")
    jobs = jobs_database(data_dir / "jobs.sqlite3")
    counts |= _read(jobs, partial(_copy_jobs, write, data_dir / "spool"))
    counts["keys"] = 0
    files = {"keys.sqlite3": tables.KEYS, KEYS_FILE: tables.ENCRYPTION, **tables_of_plugins()}
    for name, schema in files.items():
        if (data_dir / name).is_file():
            copy = partial(_copy_tables, write, schema.metadata.sorted_tables)
            copied = _read(ServiceDatabase(data_dir / name, [schema]), copy)
            counts |= {"keys": copied["keys"]} if schema is tables.KEYS else {}
    secret = {"name": "tenants", "value": own_secret(data_dir)}
    upsert(write, tables.secrets, [secret])
    membership.expect(write, gateway_id, str(data_dir))
    return counts


def _read(file: Database, copy: Callable[[Connection], dict[str, int]]) -> dict[str, int]:
    """Copy from a file, which is created, or brought up to date, first."""
    file.start()
    try:
        with file.read() as source:
            return copy(source)
    finally:
        file.close()


def _copy_catalog(target: Connection, source: Connection) -> dict[str, int]:
    """Copy everything, with ids and generation, so that a saved index stays right."""
    documents, chunks = catalog.documents, catalog.chunks
    holds_nul = or_(*(func.instr(documents.c[name], func.char(0)) > 0
                      for name in ("text", "title", "doc_id")))  # fmt: skip
    if found := source.scalars(select(documents.c.doc_id).where(holds_nul).limit(3)).all():
        raise DatabaseError(
            "PostgreSQL stores no NUL characters, and these documents hold some: "
            f"{', '.join(map(repr, found))}; ingest them without, or delete them"
        )

    def folded(row: Row) -> Row:
        names = {"folded_id": row["doc_id"], "folded_title": row["title"]}
        return row | {column: name.casefold() for column, name in names.items()}

    counts = _copy_tables(target, [catalog.spaces, catalog.scopes], source)
    counts["documents"] = _copy_table(source, target, documents, change=folded)
    counts |= _copy_tables(
        target,
        [chunks, catalog.vectors, catalog.accompanied, catalog.companions, catalog.primers,
         catalog.marks],
        source,
    )  # fmt: skip
    query = select(documents.c.scope_id, chunks.c.chunk_id).join_from(chunks, documents)
    for batch in source.execute(query.order_by(documents.c.scope_id)).partitions(500):
        for scope_id, rows in groupby(batch, key=lambda row: row.scope_id):
            ids = [row.chunk_id for row in rows]
            postings.add(target, scope_id, queries.words_of(source, chunks.c.chunk_id, ids))
    state = source.execute(select(catalog.state)).mappings().one()
    target.execute(catalog.state.update().values(**state))
    target.execute(catalog.changes.delete())
    nothing = {"tenant": "", "collection": "", "removed": [], "added": []}
    target.execute(catalog.changes.insert(), {**state, **nothing})
    for table, column in ((catalog.spaces, "space_id"), (catalog.scopes, "scope_id"),
                          (documents, "document"), (chunks, "chunk_id")):  # fmt: skip
        _go_on_after(source, target, table, column)
    return {name: counts[name] for name in ("documents", "chunks")}


def _copy_jobs(target: Connection, spool: Path, source: Connection) -> dict[str, int]:
    def with_content(row: Row) -> Row:
        if (name := row["spooled"]) is None:
            return row
        return row | {"content": (spool / name).read_bytes(), "spooled": None}

    jobs, documents = tables.jobs, tables.documents
    counts = {"jobs": _copy_table(source, target, jobs, where=jobs.c.state != "spooling")}
    accepted = documents.c.state != "spooling"
    _copy_table(source, target, documents, where=accepted, change=with_content)
    further = [tables.sizes, tables.purges, tables.contents, tables.receipts]
    counts |= _copy_tables(target, further, source)
    for table in (jobs, documents, tables.purges):
        _go_on_after(source, target, table, "number")
    return {name: counts[name] for name in ("jobs", "receipts", "purges")}


def _copy_tables(target: Connection, copied: Iterable[Table], source: Connection) -> dict[str, int]:
    return {table.name: _copy_table(source, target, table) for table in copied}


def _copy_table(
    source: Connection,
    target: Connection,
    table: Table,
    *,
    where: ColumnElement[bool] | None = None,
    change: Callable[[Row], Row] = lambda row: row,
) -> int:
    """Copy rows with the numbers that they have; return how many."""
    columns = [column for column in table.columns if "only" not in column.info]
    rows = source.execute(select(*columns).where(true() if where is None else where))
    copied = 0
    for batch in rows.mappings().partitions(1000):
        target.execute(table.insert(), [change(dict(row)) for row in batch])
        copied += len(batch)
    return copied


def _go_on_after(source: Connection, target: Connection, table: Table, column: str) -> None:
    """Give out numbers in this column that come after all that SQLite has given out."""
    last = 0
    if table.dialect_options["sqlite"]["autoincrement"]:
        given = text("SELECT seq FROM sqlite_sequence WHERE name = :name")
        last = source.scalar(given, {"name": table.name}) or 0
    there = target.scalar(select(func.max(table.c[column]))) or 0
    if last := max(int(last), int(there)):
        sequence = func.pg_get_serial_sequence(table.name, column)
        target.execute(select(func.setval(sequence, last)))
