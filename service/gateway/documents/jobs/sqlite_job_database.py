"""jobs.sqlite3: connection, transactions, tables, and the migration from earlier releases.

It holds documents that were accepted and are not done, pending purges, and receipts. Text is kept
no longer than it is needed: SQLite overwrites freed space, and `scrub` empties the write-ahead log,
which would otherwise keep older versions of pages.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retriever.sql.connection import Connection, SqliteConnection
from service.errors import InternalError, InvalidSetting
from service.gateway.data_folder import DiskGuard
from service.gateway.documents.jobs.job_database import AlreadyAccepted

VERSION = 5
# Large content is in a file of the spool folder. Whatever makes a row forget its file, also the
# end of its job, leaves the name in freed_files until the file is removed. `events` is what is owed
# to the webhook.
_NEW_IN_5 = """
CREATE TABLE freed_files (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TRIGGER freed_by_update AFTER UPDATE OF spooled ON documents
    WHEN OLD.spooled IS NOT NULL AND NEW.spooled IS NULL
    BEGIN INSERT OR IGNORE INTO freed_files VALUES (OLD.spooled); END;
CREATE TRIGGER freed_by_delete AFTER DELETE ON documents WHEN OLD.spooled IS NOT NULL
    BEGIN INSERT OR IGNORE INTO freed_files VALUES (OLD.spooled); END;
CREATE TABLE events (
    event_id TEXT PRIMARY KEY, body BLOB NOT NULL, attempts INTEGER NOT NULL,
    created REAL NOT NULL, due REAL NOT NULL
);
"""
_TABLES = f"""
CREATE TABLE jobs (
    job_id TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE, tenant TEXT NOT NULL,
    state TEXT NOT NULL, cancelled INTEGER NOT NULL DEFAULT 0,
    idempotency_key TEXT, digest BLOB, created REAL NOT NULL, updated REAL NOT NULL,
    UNIQUE (tenant, idempotency_key)
);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE TABLE documents (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL REFERENCES jobs ON DELETE CASCADE,
    collection TEXT NOT NULL, doc_id TEXT NOT NULL, bytes INTEGER NOT NULL,
    kind TEXT, meta TEXT, content BLOB,
    state TEXT NOT NULL, change TEXT, chunks INTEGER NOT NULL DEFAULT 0, error TEXT,
    tokens INTEGER NOT NULL DEFAULT 0, spooled TEXT
);
CREATE INDEX documents_of_job ON documents (job_id);
CREATE INDEX documents_open ON documents (state, number) WHERE state IN ('pending', 'indexed');
CREATE TABLE sizes (
    tenant TEXT NOT NULL, collection TEXT NOT NULL, doc_id TEXT NOT NULL, bytes INTEGER NOT NULL,
    PRIMARY KEY (tenant, collection, doc_id)
) WITHOUT ROWID;
CREATE TABLE purges (
    number INTEGER PRIMARY KEY AUTOINCREMENT, receipt_id TEXT, tenant TEXT NOT NULL,
    collection TEXT NOT NULL, doc_id TEXT NOT NULL, chunk_id INTEGER NOT NULL, ids TEXT NOT NULL,
    copies TEXT NOT NULL DEFAULT '[]'
);
CREATE INDEX purges_of_receipt ON purges (receipt_id);
CREATE TABLE contents (chunk_id INTEGER PRIMARY KEY, digest BLOB NOT NULL);
CREATE INDEX contents_by_digest ON contents (digest);
CREATE TABLE receipts (
    receipt_id TEXT PRIMARY KEY, tenant TEXT NOT NULL, collection TEXT NOT NULL,
    doc_ids TEXT NOT NULL, documents INTEGER NOT NULL, chunks INTEGER NOT NULL,
    kv TEXT NOT NULL, unreached TEXT NOT NULL, created REAL NOT NULL, completed REAL
);{_NEW_IN_5}"""
# The first release had no tenants and kept a document as one JSON text.
_FROM_1 = f"""
ALTER TABLE jobs RENAME TO jobs_1;
ALTER TABLE documents RENAME TO documents_1;
ALTER TABLE purges RENAME TO purges_1;
ALTER TABLE contents RENAME TO contents_1;
DROP INDEX documents_of_job;
DROP INDEX documents_open;
DROP INDEX contents_by_digest;
{_TABLES}
INSERT INTO jobs (job_id, number, tenant, state, created, updated)
    SELECT job_id, number, '', CASE
        WHEN NOT EXISTS (SELECT 1 FROM documents_1 d WHERE d.job_id = j.job_id
            AND state != 'pending') THEN 'queued'
        WHEN EXISTS (SELECT 1 FROM documents_1 d WHERE d.job_id = j.job_id
            AND state IN ('pending', 'indexed')) THEN 'running'
        WHEN EXISTS (SELECT 1 FROM documents_1 d WHERE d.job_id = j.job_id
            AND state = 'failed') THEN 'failed'
        ELSE 'succeeded' END, created, updated
    FROM jobs_1 j;
INSERT INTO documents (number, job_id, collection, doc_id, bytes, kind, meta, content,
        state, change, chunks, error)
    SELECT number, job_id, 'default', doc_id, coalesce(length(payload), 0), 'text',
        CASE WHEN payload IS NULL THEN NULL ELSE json_object(
            'title', coalesce(json_extract(payload, '$.title'), ''),
            'metadata', json(coalesce(json_extract(payload, '$.metadata'), '{{}}'))) END,
        CAST(json_extract(payload, '$.text') AS BLOB), state, change, chunks, error
    FROM documents_1;
INSERT INTO purges SELECT number, NULL, '', 'default', doc_id, chunk_id, ids, '[]' FROM purges_1;
INSERT INTO contents SELECT * FROM contents_1;
DROP TABLE documents_1;
DROP TABLE jobs_1;
DROP TABLE purges_1;
DROP TABLE contents_1;
"""


_FROM_2 = "ALTER TABLE purges ADD COLUMN copies TEXT NOT NULL DEFAULT '[]'"
_FROM_3 = "ALTER TABLE documents ADD COLUMN tokens INTEGER NOT NULL DEFAULT 0"
_FROM_4 = "ALTER TABLE documents ADD COLUMN spooled TEXT;" + _NEW_IN_5


class SqliteJobDatabase:
    """Opened by start(). Thread-safe; every transaction blocks for one or two disk writes."""

    gateway_id = ""

    def __init__(self, path: Path, disk: DiskGuard | None = None) -> None:
        self._path = path
        self._disk = disk or DiskGuard(path.parent)
        self._lock = threading.Lock()
        self._connection: SqliteConnection | None = None

    def start(self) -> None:
        """Open the file, and migrate it if need be; does nothing if it is open.

        Raises:
            InvalidSetting: The file is damaged, or a later release has written it.
            DiskFull: There is no room for the files beside it.
        """
        if self._connection is not None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                self._path,
                check_same_thread=False,
                isolation_level=None,
                timeout=10,
                factory=SqliteConnection,
            )
            try:
                connection.row_factory = sqlite3.Row
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("PRAGMA secure_delete = ON")
                _create_or_migrate(connection, self._path)
                connection.execute("PRAGMA foreign_keys = ON")
            except BaseException:
                connection.close()
                raise
        except (OSError, sqlite3.Error) as error:
            if (full := self._disk.recognise(error)) is not None:
                raise full from error
            raise InvalidSetting(
                f"the job store {self._path} cannot be used ({error}): restore it from a backup, "
                "or move it away, which forgets jobs and the deletions that are still owed"
            ) from error
        self._connection = connection

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Commit the whole block or nothing. One thread at a time.

        Raises:
            DiskFull: There is no room.
            AlreadyAccepted: A rule of uniqueness is broken.
        """
        with self._lock, self._disk.translated():
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException as error:
                connection.rollback()  # SQLite may have done it already
                if _breaks_uniqueness(error):
                    raise AlreadyAccepted from error
                raise

    def insert_job(self, write: Connection, job_id: str, tenant: str, now: float) -> None:
        write.execute(
            "INSERT INTO jobs (job_id, number, tenant, state, created, updated) "
            "SELECT ?, coalesce(max(number), 0) + 1, ?, 'spooling', ?, ? FROM jobs",
            (job_id, tenant, now, now),
        )

    def one_acceptance(self, write: Connection, tenant: str) -> None:
        """Transactions that write come one at a time anyway."""

    def scrub(self) -> None:
        """Remove the remains of deleted text from disk."""
        with self._lock, self._disk.translated():
            self._open().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _open(self) -> SqliteConnection:
        if self._connection is None:
            raise InternalError("the job store is closed")
        return self._connection


def _breaks_uniqueness(error: BaseException) -> bool:
    return (
        isinstance(error, sqlite3.IntegrityError)
        and error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_UNIQUE
    )


def _create_or_migrate(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = {r["name"] for r in connection.execute("SELECT name FROM sqlite_master")}
        if version == 0:
            _run(connection, _FROM_1 if "jobs" in tables else _TABLES)
        elif version in (2, 3, 4):
            if version == 2:
                connection.execute(_FROM_2)
            if version < 4:
                connection.execute(_FROM_3)
            _run(connection, _FROM_4)
        elif version != VERSION:
            raise InvalidSetting(
                f"{path} has schema version {version}, this release reads up to {VERSION}: use "
                "the release that wrote it, or another --data-dir"
            )
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _run(connection: sqlite3.Connection, script: str) -> None:
    """Run the statements one by one, because executescript() would commit in between."""
    for statement in script.split(";\n"):
        connection.execute(statement)
