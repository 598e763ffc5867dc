"""Connections are closed, whenever the database is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kvstitch.retriever.errors import DatabaseError
from kvstitch.retriever.sql.database import Database
from kvstitch.retriever.sql.revisions import Schema
from tests.postgresql_server import PostgresqlServer

BOTH_DATABASES = True  # every test here holds for each (see conftest.py)


def opened(database: str, tmp_path: Path) -> Database:
    made = Database(database or tmp_path / "things.db", [], namespace="kvstitch_things")
    made.start()
    return made


def is_closed(connection: Any) -> bool:
    try:
        connection.execute("SELECT 1")
    except Exception:
        return True
    return False


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_connection_in_use_at_the_end_is_closed_after_it(
    kind: str, database: str, tmp_path: Path
) -> None:
    """Not left to the garbage collector."""
    made = opened(database, tmp_path)
    with made.read() as first, made.read():
        idle = first.connection.driver_connection
    assert not is_closed(idle)
    block = made.read() if kind == "read" or not made.shared else made.write()
    with block as connection:
        in_use = connection.connection.driver_connection
        made.close()
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    assert is_closed(in_use)
    assert is_closed(idle)


def test_a_lock_held_at_the_end_is_given_back(database: str, tmp_path: Path) -> None:
    made = opened(database, tmp_path)
    if not made.shared:
        pytest.skip("SQLite has no such locks")
    with made.locked(7):
        made.close()
    other = opened(database, tmp_path)
    with other.read() as read:
        assert read.exec_driver_sql("SELECT pg_try_advisory_lock(7)").scalar()
    other.close()


def test_a_session_that_cannot_be_set_up_is_closed(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not database:
        pytest.skip("its settings are PostgreSQL's")
    import psycopg

    made: list[Any] = []
    connect = psycopg.connect

    def remembered(*arguments: Any, **options: Any) -> Any:
        made.append(connect(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(psycopg, "connect", remembered)
    refused = Database(database, [Schema("t", sa.MetaData(), "t_1")], namespace="a b c")
    with pytest.raises(DatabaseError):
        refused.start()
    assert [connection.closed for connection in made] == [True]


def test_a_database_that_cannot_hold_every_text_is_refused(
    postgresql_server: PostgresqlServer, tmp_path: Path
) -> None:
    with pytest.raises(DatabaseError, match=r"SQL_ASCII.*ENCODING 'UTF8'"):
        opened(postgresql_server.database("SQL_ASCII"), tmp_path)
