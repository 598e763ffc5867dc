"""PostgreSQL: a pool of connections, transactions, locks and migrations.

psycopg is imported when a database is opened, so that a service without one needs no such package.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg
    from psycopg_pool import ConnectionPool


CONNECT_S = 5  # to connect, or to wait for a connection
# Both ends notice within half a minute that the other is cut off. The server then gives up the
# session, and with it its locks.
CLIENT_KEEPALIVE = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5,
                    "keepalives_count": 3, "tcp_user_timeout": 25_000}  # fmt: skip
SERVER_KEEPALIVE = {"tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5,
                    "tcp_keepalives_count": 3, "tcp_user_timeout": 25_000}  # fmt: skip
MIGRATING = 0x6B76_0001  # number of the advisory lock


class PostgresqlError(Exception):
    """The database failed, or cannot be reached; the message says how."""


class PostgresqlUnreachable(PostgresqlError):
    """No connection, or it broke: what was under way may be tried again."""


class AlreadyThere(PostgresqlError):
    """A row breaks a rule of uniqueness."""


class Refused(PostgresqlError):
    """A value that PostgreSQL cannot store, e.g. a NUL character in a text."""


class NamedRow(tuple[Any, ...]):
    """A row as sqlite3.Row is: by name or number; iterating over it yields the values."""

    names: dict[str, int]

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.names[key] if isinstance(key, str) else key)

    def keys(self) -> list[str]:
        return list(self.names)


def _named_rows(cursor: Any) -> Any:
    columns = cursor.description or ()
    kind = type("NamedRow", (NamedRow,), {"names": {c.name: i for i, c in enumerate(columns)}})
    return kind


@cache
def _translated_sql(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


class PostgresqlConnection:
    """Satisfies `Connection`, over a psycopg connection."""

    in_numbers = "= ANY(CAST(? AS bigint[]))"
    in_texts = "= ANY(CAST(? AS text[]))"
    for_update = " FOR UPDATE"
    skip_locked = " FOR UPDATE SKIP LOCKED"

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Any:
        return self.raw.execute(_translated_sql(sql), tuple(parameters))

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Any:
        cursor = self.raw.cursor()
        rows = list(parameters)
        if rows:
            cursor.executemany(_translated_sql(sql), rows)
        return cursor

    def listed(self, values: Collection[Any]) -> list[Any]:
        return list(values)


class Postgresql:
    """A pool of connections to one database; every call blocks. Thread-safe.

    Args:
        url: postgresql://user:password@host:port/name, with psycopg's options.
        schema: where its tables are; made by `migrate`.
        connections: the most that are open at a time.
    """

    def __init__(self, url: str, schema: str, *, connections: int = 16) -> None:
        self._url = url
        self._schema = schema
        self._connections = connections
        self._pool: ConnectionPool[Any] | None = None
        self._starting = threading.Lock()

    def start(self) -> None:
        """Connect; does nothing if that was done.

        Raises:
            PostgresqlError: it cannot be reached, or psycopg is not installed.
        """
        with self._starting:
            if self._pool is not None:
                return
            try:
                import psycopg
                from psycopg_pool import ConnectionPool
            except ImportError as error:
                raise PostgresqlError(
                    "psycopg is not installed: pip install 'kvstitch[postgresql]'"
                ) from error
            options = {"row_factory": _named_rows, "connect_timeout": CONNECT_S, **CLIENT_KEEPALIVE}
            with _errors():  # without the pool's retries: what is wrong is said at once
                psycopg.connect(self._url, connect_timeout=CONNECT_S).close()
            pool: ConnectionPool[Any] = ConnectionPool(
                self._url, kwargs={**options, "autocommit": True}, min_size=1,
                max_size=self._connections, timeout=CONNECT_S, open=False,
                check=ConnectionPool.check_connection, configure=self._configure,
            )  # fmt: skip
            pool.open()
            self._pool = pool

    def close(self) -> None:
        with self._starting:
            if self._pool is not None:
                self._pool.close()
                self._pool = None

    @contextmanager
    def transaction(
        self, *, snapshot: bool = False, lock: int | None = None
    ) -> Iterator[PostgresqlConnection]:
        """Commit the whole block or nothing.

        Args:
            snapshot: read only, and one state of the database during the whole block.
            lock: an advisory lock that is held until the end.

        Raises:
            PostgresqlError: as its kinds say.
        """
        with self._connection() as raw:
            raw.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if snapshot else "BEGIN")
            try:
                if lock is not None:
                    raw.execute("SELECT pg_advisory_xact_lock(%s)", (lock,))
                yield PostgresqlConnection(raw)
                raw.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(Exception):  # the connection may be what failed
                    raw.execute("ROLLBACK")
                raise

    @contextmanager
    def locked(self, lock: int) -> Iterator[None]:
        """Hold an advisory lock, which waits for others, on a connection of its own."""
        with self._connection() as raw:
            raw.execute("SELECT pg_advisory_lock(%s)", (lock,))
            try:
                yield
            finally:
                with contextlib.suppress(Exception):  # a lost connection has lost the lock, too
                    raw.execute("SELECT pg_advisory_unlock(%s)", (lock,))

    def migrate(self, steps: Sequence[str]) -> None:
        """Bring the schema up to date; of several processes one does it.

        Args:
            steps: SQL by version: the first makes version 1 of nothing.

        Raises:
            PostgresqlError: a later release has written it.
        """
        with self.transaction(lock=MIGRATING) as write:
            write.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
            write.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
            row = write.execute("SELECT version FROM schema_version").fetchone()
            version = 0 if row is None else row["version"]
            if version > len(steps):
                raise PostgresqlError(
                    f"the schema {self._schema} has version {version}, this release reads up to "
                    f"{len(steps)}: use the release that wrote it"
                )
            for step in steps[version:]:
                write.raw.execute(step.encode())  # without parameters: several statements
            write.execute("DELETE FROM schema_version")
            write.execute("INSERT INTO schema_version VALUES (?)", (len(steps),))

    def _configure(self, raw: psycopg.Connection[Any]) -> None:
        # `public` is where extensions are.
        raw.execute(f"SET search_path TO {self._schema}, public".encode())
        for name, value in SERVER_KEEPALIVE.items():
            raw.execute(f"SET {name} = {value}".encode())

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        if self._pool is None:
            raise PostgresqlUnreachable("the database is not open")
        with _errors(), self._pool.connection() as raw:
            yield raw


@contextmanager
def _errors() -> Iterator[None]:
    """psycopg's errors become ours."""
    import psycopg
    from psycopg_pool import PoolTimeout

    try:
        yield
    except psycopg.errors.UniqueViolation as error:
        raise AlreadyThere(str(error)) from error
    except psycopg.DataError as error:
        raise Refused(str(error)) from error
    except (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout) as error:
        raise PostgresqlUnreachable(f"PostgreSQL cannot be reached: {error}") from error
    except psycopg.Error as error:
        raise PostgresqlError(f"PostgreSQL failed: {error}") from error
