"""Copies a data folder's databases to PostgreSQL: all of them in one transaction, or nothing."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from retriever.catalog.migration import copy_catalog
from retriever.catalog.tables import catalog_database
from retriever.errors import RetrieverError
from retriever.sql.postgresql import Postgresql, PostgresqlConnection, _named_rows
from service.errors import InvalidSetting
from service.gateway import shared_schema
from service.gateway.auth.key_databases import SqliteKeyDatabase
from service.gateway.auth.secret_file import own_secret
from service.gateway.data_folder import lock_folder
from service.gateway.documents import membership
from service.gateway.documents.jobs.sqlite_job_database import SqliteJobDatabase

_ACCEPTED = "state != 'spooling'"
_JOBS = ("job_id", "number", "tenant", "state", "cancelled", "idempotency_key", "digest",
         "created", "updated")  # fmt: skip
_DOCUMENTS = ("number", "job_id", "collection", "doc_id", "bytes", "kind", "meta", "content",
              "state", "change", "chunks", "error", "tokens", "spooled")  # fmt: skip
_CONTENT, _SPOOLED = _DOCUMENTS.index("content"), _DOCUMENTS.index("spooled")
_TABLES = (
    ("sizes", ("tenant", "collection", "doc_id", "bytes")),
    ("purges", ("number", "receipt_id", "tenant", "collection", "doc_id", "chunk_id", "ids",
                "copies")),
    ("contents", ("chunk_id", "digest")),
    ("receipts", ("receipt_id", "tenant", "collection", "doc_ids", "documents", "chunks", "kv",
                  "unreached", "created", "completed")),
    ("events", ("event_id", "body", "attempts", "created", "due")),
)  # fmt: skip
_KEYS = ("key_id", "secret_sha256", "name", "tenant", "scopes", "created", "expires", "revoked",
         "documents", "bytes", "requests_per_minute", "tokens_per_minute", "adapter")  # fmt: skip


def migrate(data_dir: Path, url: str) -> dict[str, int]:
    """Copy catalog, jobs, deletions, receipts and keys; the folder stays as it is.

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
    lock = lock_folder(data_dir)
    pool = Postgresql(url, shared_schema.SCHEMA, connections=2)
    catalog = catalog_database(url, connections=2)
    try:
        shared_schema.start(pool)
        catalog.start()
        with shared_schema.translated(), catalog.write() as write:
            counts = _copy(data_dir, write, gateway_id := uuid.uuid4().hex)
        # Its KV is right for what was copied: the gateway that starts from it may keep it.
        (data_dir / membership.ID_FILE).write_text(gateway_id, encoding="ascii")
        return counts
    except RetrieverError as error:
        raise InvalidSetting(str(error)) from error
    finally:
        pool.close()
        catalog.close()
        lock.close()


def _copy(data_dir: Path, connection: Connection, gateway_id: str) -> dict[str, int]:
    schema = shared_schema.SCHEMA
    for table in ("documents", f"{schema}.jobs", f"{schema}.keys", f"{schema}.receipts"):
        if connection.exec_driver_sql(f"SELECT 1 FROM {table} LIMIT 1").first() is not None:
            raise InvalidSetting(
                f"the database holds {table.removeprefix(schema + '.')} already: give an empty one"
            )
    counts = copy_catalog(data_dir / "catalog.db", connection)
    raw: Any = connection.connection.driver_connection
    raw.row_factory = _named_rows
    write = PostgresqlConnection(raw)
    write.execute(f"SET LOCAL search_path TO {schema}, public")
    counts |= _copy_jobs(data_dir, write)
    counts["keys"] = _copy_keys(data_dir / "keys.sqlite3", write)
    write.execute(
        "INSERT INTO secrets VALUES ('tenants', ?) ON CONFLICT (name) "
        "DO UPDATE SET value = excluded.value",
        (own_secret(data_dir),),
    )
    membership.expect(write, gateway_id, str(data_dir))
    return counts


def _copy_jobs(data_dir: Path, write: PostgresqlConnection) -> dict[str, int]:
    file = data_dir / "jobs.sqlite3"
    database = SqliteJobDatabase(file)
    database.start()  # creates it, or brings it up to date
    database.close()

    def with_content(row: list[Any]) -> list[Any]:
        if row[_SPOOLED] is not None:
            row[_CONTENT] = (data_dir / "spool" / row[_SPOOLED]).read_bytes()
            row[_SPOOLED] = None
        return row

    source = sqlite3.connect(file)
    try:
        counts = {"jobs": copy_table(source, write, "jobs", _JOBS, where=_ACCEPTED)}
        copy_table(source, write, "documents", _DOCUMENTS, where=_ACCEPTED, change=with_content)
        copied = {table: copy_table(source, write, table, names) for table, names in _TABLES}
        counts |= {name: copied[name] for name in ("receipts", "purges")}
        go_on_after(write, "jobs", "number", 0)
        for table in ("documents", "purges"):
            go_on_after(write, table, "number", last_given_out(source, table))
        return counts
    finally:
        source.close()


def _copy_keys(file: Path, write: PostgresqlConnection) -> int:
    database = SqliteKeyDatabase(file)
    database.start()
    database.close()
    source = sqlite3.connect(file)
    try:
        return copy_table(source, write, "keys", _KEYS)
    finally:
        source.close()


def copy_table(
    source: sqlite3.Connection,
    target: PostgresqlConnection,
    table: str,
    columns: Sequence[str],
    *,
    where: str = "true",
    change: Callable[[list[Any]], list[Any]] = lambda row: row,
    further: Sequence[str] = (),
) -> int:
    """Copy rows with the numbers that they have; returns how many.

    Args:
        source: the file.
        target: its table must have these columns, too.
        table: in both.
        columns: which to copy.
        where: which rows; a condition for SQLite.
        change: a row on its way, which may get values of `further` columns.
        further: columns that only the target has.
    """
    rows = source.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE {where}")
    copied = 0
    names = ", ".join([*columns, *further])
    with target.raw.cursor().copy(f"COPY {table} ({names}) FROM STDIN".encode()) as copy:
        for row in rows:
            copy.write_row(change(list(row)))
            copied += 1
    return copied


def go_on_after(target: PostgresqlConnection, table: str, column: str, last: int) -> None:
    """The next number that is given out in this column comes after `last` and all that is there."""
    query = f"SELECT greatest(?, coalesce(max({column}), 0)) AS last FROM {table}"
    last = int(target.execute(query, (last,)).fetchone()["last"])
    if last:
        sequence = "pg_get_serial_sequence(?, ?)"
        target.execute(f"SELECT setval({sequence}, ?)", (table, column, last))


def last_given_out(source: sqlite3.Connection, table: str) -> int:
    """The last number that SQLite has given out in an AUTOINCREMENT column, 0 if none."""
    row = source.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
    return 0 if row is None else int(row[0])
