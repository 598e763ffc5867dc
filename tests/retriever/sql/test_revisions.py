"""A store of an earlier revision is brought up to date, on either database."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from kvstitch.retriever.errors import WrongSchema
from kvstitch.retriever.sql.database import Database
from kvstitch.retriever.sql.revisions import Schema, add_column

BOTH_DATABASES = True  # every test here holds for each (see conftest.py)


def things(revision: int) -> Schema:
    metadata = sa.MetaData()
    columns = [sa.Column("name", sa.Text, primary_key=True)]
    columns += [sa.Column("colour", sa.Text, server_default="red")] if revision > 1 else []
    sa.Table("things", metadata, *columns)

    def add_colour(connection: sa.Connection) -> None:
        add_column(connection, "things", "colour", sa.Text, "red")

    return Schema("things", metadata, "things_1", {"things_2": add_colour} if revision > 1 else {})


def others() -> Schema:
    metadata = sa.MetaData()
    sa.Table("others", metadata, sa.Column("name", sa.Text, primary_key=True))
    return Schema("others", metadata, "others_1")


def opened(database: str, tmp_path: Path, *schemas: Schema) -> Database:
    made = Database(database or tmp_path / "things.db", schemas, namespace="kvstitch_things")
    made.start()
    return made


def test_of_two_stores_in_a_database_an_earlier_one_is_upgraded_once(
    database: str, tmp_path: Path
) -> None:
    old = opened(database, tmp_path, others(), things(1))
    with old.write() as write:
        write.exec_driver_sql("INSERT INTO things VALUES ('fox')")
    old.close()
    for _ in range(2):
        new = opened(database, tmp_path, others(), things(2))
        with new.read() as read:
            assert read.exec_driver_sql("SELECT name, colour FROM things").all() == [("fox", "red")]
            found = read.exec_driver_sql("SELECT version_num FROM alembic_version").scalars()
            assert sorted(found) == ["others_1", "things_2"]
        new.close()


def test_a_new_database_gets_the_newest_tables(database: str, tmp_path: Path) -> None:
    made = opened(database, tmp_path, things(2))
    with made.write() as write:
        write.exec_driver_sql("INSERT INTO things (name) VALUES ('fox')")
    with made.read() as read:
        assert read.exec_driver_sql("SELECT * FROM things").all() == [("fox", "red")]
    made.close()


def test_a_later_revision_is_refused(database: str, tmp_path: Path) -> None:
    opened(database, tmp_path, things(2)).close()
    with pytest.raises(WrongSchema, match="things_2"):
        opened(database, tmp_path, things(1))
