"""One database: an SQLite file, or a schema of PostgreSQL.

SQLite is in WAL mode: readers see a snapshot and never wait for the writer, of which there is one
at a time. PostgreSQL's driver is imported when a database is opened, so that a service without one
needs no such package.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoneIsFree

from kvstitch.retriever.errors import (
    AlreadyThere,
    DatabaseError,
    NotOpen,
    Unreachable,
    ValueRefused,
)
from kvstitch.retriever.sql.revisions import Schema, prepare

CONNECT_S = 5  # to connect, or to wait for a connection
WRITE_WAIT_S = 5.0  # how long a write waits for another process's in an SQLite file
# Both ends notice within half a minute that the other is cut off. The server then gives up the
# session, and with it its locks.
CLIENT_KEEPALIVE: Any = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5,
                    "keepalives_count": 3, "tcp_user_timeout": 25_000}  # fmt: skip
LOCK_WAIT_S = 10  # for what another session of PostgreSQL has locked
CHANGE_WAIT_S = 60  # for a lock that gateways hold while documents change
_SESSION = {"tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 3,
            "tcp_user_timeout": 25_000, "lock_timeout": LOCK_WAIT_S * 1000}  # fmt: skip
# What passes, and is no OperationalError: after a failover the server is read-only; rights were
# taken away; a session that did nothing was ended.
_PASSES = ("25006", "42501", "25P03")
PREPARING = 0x6B76_0001  # number of the advisory lock
NO_LOCK = 0

# What passes when whoever holds the file, or has it read-only, lets go of it.
_HELD = (
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM),
)
_SQLITE_SETTINGS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA foreign_keys = ON",
    # What was acknowledged survives a power cut.
    "PRAGMA synchronous = FULL",
    # Deleted content is overwritten, and no copy of a page goes to a temporary file.
    "PRAGMA secure_delete = ON",
    "PRAGMA temp_store = MEMORY",
)


class Database:
    """Connections to one database, opened by `start`. Thread-safe; every call blocks.

    Attributes:
        shared: Whether it is PostgreSQL, which other processes change, too.
        write_lock: Number of an advisory lock of PostgreSQL that every write holds, so that writes
            come one at a time, as they do in SQLite; None: they do not.
    """

    def __init__(
        self,
        where: Path | str,
        schemas: Sequence[Schema],
        *,
        namespace: str = "",
        connections: int = 16,
        write_lock: int | None = None,
    ) -> None:
        self.shared = isinstance(where, str)
        self._where = where
        self._schemas = schemas
        self._namespace = namespace
        self._connections = connections
        self._write_lock = write_lock
        self._engine: sa.Engine | None = None
        self._idle: list[sa.Connection] = []
        self._starting = threading.Lock()
        self._writing = contextlib.nullcontext() if self.shared else threading.Lock()
        self._begin_write = "BEGIN" if self.shared else "BEGIN IMMEDIATE"

    def start(self) -> None:
        """Open the database and create its tables, or bring them up to date; once is enough."""
        with self._starting, self._translated():
            if self._engine is None:
                engine = self._open()
                try:
                    with self._transaction(engine, self._begin_write, PREPARING) as connection:
                        if self.shared:
                            create = f"CREATE SCHEMA IF NOT EXISTS {self._namespace}"
                            connection.exec_driver_sql(create)
                        for schema in self._schemas:
                            name = self._namespace if self.shared else str(self._where)
                            prepare(connection, schema, name)
                except BaseException:
                    engine.dispose()
                    raise
                self._idle = []
                self._engine = engine

    def close(self) -> None:
        """Close all idle connections; what is under way keeps its own until it ends."""
        with self._starting, self._writing:
            engine, self._engine = self._engine, None
            if engine is not None:
                _close_idle(engine, self._idle)

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Yield a connection that sees one snapshot during the whole block."""
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if self.shared else "BEGIN"
        with self._translated(), self._transaction(self._opened(), begin) as connection:
            yield connection

    @contextmanager
    def write(self, lock: int | None = None) -> Iterator[sa.Connection]:
        """Commit the whole block or nothing; `lock` is held in place of `write_lock`, NO_LOCK:
        none."""
        lock = self._write_lock if lock is None else lock
        with (
            self._writing,
            self._translated(),
            self._transaction(self._opened(), self._begin_write, lock) as connection,
        ):
            yield connection

    @contextmanager
    def locked(self, lock: int) -> Iterator[None]:
        """Hold an advisory lock of PostgreSQL; it ends with the session of a process that dies."""
        with self._translated(), self._connection(self._opened()) as connection:
            driver: Any = connection.connection.driver_connection
            driver.execute(f"SET lock_timeout = {CHANGE_WAIT_S * 1000}")
            try:
                driver.execute("SELECT pg_advisory_lock(%s)", (lock,))
            finally:
                driver.execute(f"SET lock_timeout = {LOCK_WAIT_S * 1000}")
            try:
                yield
            finally:
                try:
                    driver.execute("SELECT pg_advisory_unlock(%s)", (lock,))
                except Exception:  # a lost connection has lost the lock, too
                    connection.invalidate()

    def scrub(self) -> bool:
        """Empty SQLite's log, which still holds old versions of pages; False: reads did not end in
        time. (PostgreSQL's VACUUM does it when it decides to.)"""
        if self.shared:
            return True
        with self._writing, self._translated(), self._connection(self._opened()) as connection:
            checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)"
            busy, *_ = connection.exec_driver_sql(checkpoint).one()
            return not busy

    def _opened(self) -> sa.Engine:
        if self._engine is None:
            raise NotOpen("the database is not open: call start() first")
        return self._engine

    def _open(self) -> sa.Engine:
        # AUTOCOMMIT: transactions are begun and ended here, as each database needs it.
        common: dict[str, Any] = {
            "isolation_level": "AUTOCOMMIT",
            "skip_autocommit_rollback": True,
            "pool_reset_on_return": None,
            "pool_use_lifo": True,
        }
        if self.shared:
            self._connect_postgresql().close()  # what is wrong is said at once
            return sa.create_engine(
                "postgresql+psycopg://", creator=self._connect_postgresql, pool_pre_ping=True,
                pool_size=self._connections, max_overflow=0, pool_timeout=CONNECT_S,
                use_native_hstore=False, **common,
            )  # fmt: skip
        Path(self._where).parent.mkdir(parents=True, exist_ok=True)
        # The pool grows to the number of concurrent reads.
        return sa.create_engine(
            "sqlite://", creator=self._connect_sqlite, poolclass=sa.QueuePool, pool_size=0, **common
        )

    def _connect_postgresql(self) -> Any:
        try:
            import psycopg
        except ImportError as error:
            raise DatabaseError(
                "psycopg is not installed: pip install 'kvstitch[postgresql]'"
            ) from error
        connection = psycopg.connect(
            str(self._where), connect_timeout=CONNECT_S, autocommit=True, client_encoding="utf8",
            **CLIENT_KEEPALIVE,
        )  # fmt: skip
        try:
            if (encoding := connection.info.parameter_status("server_encoding")) != "UTF8":
                raise DatabaseError(
                    f"the database stores {encoding}, which cannot hold every text: make one with "
                    "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
                )
            # `public` is where extensions are.
            connection.execute(f"SET search_path TO {self._namespace}, public".encode())
            for name, value in _SESSION.items():
                connection.execute(f"SET {name} = {value}".encode())
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_sqlite(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._where, timeout=WRITE_WAIT_S, isolation_level=None, check_same_thread=False
        )
        try:
            # SQLite's own lower() knows ASCII only.
            connection.create_function("casefold", 1, str.casefold, deterministic=True)
            for setting in _SQLITE_SETTINGS:
                connection.execute(setting)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _transaction(
        self, engine: sa.Engine, begin: str, lock: int | None = None
    ) -> Iterator[sa.Connection]:
        with self._connection(engine) as connection:
            driver: Any = connection.connection.driver_connection
            driver.execute(begin)
            try:
                if lock == PREPARING and self.shared:  # as long as another makes the tables
                    driver.execute("SET LOCAL lock_timeout = 0")
                if lock and self.shared:
                    driver.execute("SELECT pg_advisory_xact_lock(%s)", (lock,))
                yield connection
                driver.execute("COMMIT")
            except BaseException:
                try:
                    driver.rollback()
                except Exception:  # the connection may be what failed
                    connection.invalidate()
                raise

    @contextmanager
    def _connection(self, engine: sa.Engine) -> Iterator[sa.Connection]:
        if self.shared:
            try:
                with engine.connect() as connection:
                    yield connection
            finally:
                if self._engine is not engine:  # closed meanwhile: nobody else empties its pool
                    _close_idle(engine, [])
            return
        # Taking a connection from the engine's pool takes longer than a short read of SQLite.
        idle = self._idle
        try:
            connection = idle.pop()
        except IndexError:
            connection = engine.connect()
        try:
            yield connection
        finally:
            if connection.invalidated:
                connection.close()
            else:
                idle.append(connection)
            if self._engine is not engine:  # it was closed meanwhile, or is about to be opened
                _close_idle(engine, idle)

    def _translate_error(self, error: DatabaseError) -> Exception:
        """Return what is raised in place of an error."""
        return error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            psycopg = sys.modules.get("psycopg")
            drivers = (sqlite3.Error,) if psycopg is None else (sqlite3.Error, psycopg.Error)
            if not isinstance(error, (DatabaseError, SQLAlchemyError, *drivers)):
                raise
            found = error if isinstance(error, DatabaseError) else _classified(error)
            if found is not error:  # the cause tells `error` e.g. that a disk is full
                found.__cause__ = getattr(error, "orig", None) or error
            raised = self._translate_error(found)
            if raised is error:
                raise
            raise raised from found.__cause__


def _close_idle(engine: sa.Engine, idle: list[sa.Connection]) -> None:
    """Close what nobody uses; whoever gives a connection back after the end does so again."""
    with contextlib.suppress(IndexError):  # another thread may take the last one
        while True:
            idle.pop().close()
    engine.pool.dispose()


def _classified(error: Exception) -> DatabaseError:
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sqlite3.Error):
        code = getattr(cause, "sqlite_errorcode", 0)
        if code & 0xFF in _HELD:
            return Unreachable(f"a database file cannot be used now: {cause}")
        unique = code == sqlite3.SQLITE_CONSTRAINT_UNIQUE
        return AlreadyThere(str(cause)) if unique else DatabaseError(str(cause))
    if isinstance(cause, NoneIsFree):  # of the pool
        return Unreachable(f"PostgreSQL cannot be reached: {cause}")
    if isinstance(cause, SQLAlchemyError):
        return DatabaseError(str(cause))
    import psycopg

    match cause:
        case psycopg.errors.UniqueViolation():
            return AlreadyThere(str(cause))
        case psycopg.DataError():
            return ValueRefused(f"PostgreSQL cannot store it ({cause}): leave NUL characters out")
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return Unreachable(f"PostgreSQL cannot be reached: {cause}")
        case psycopg.Error(sqlstate=code) if code in _PASSES:
            return Unreachable(f"PostgreSQL cannot be used now: {cause}")
    return DatabaseError(f"PostgreSQL failed: {cause}")
