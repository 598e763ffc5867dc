"""A store of an earlier revision is brought up to date by Alembic, on either database."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from retriever.sql.database import Database
from retriever.sql.errors import WrongSchema
from retriever.sql.revisions import Schema

BOTH_DATABASES = True  # every test here holds for each (see conftest.py)

SCRIPTS = {
    "first.py": "revision = 'things_1'\ndown_revision = None\n\n\ndef upgrade():\n    pass\n",
    "colour.py": (
        "import sqlalchemy as sa\nfrom alembic import op\n\n"
        "revision = 'things_2'\ndown_revision = 'things_1'\n\n\n"
        "def upgrade():\n"
        "    op.add_column('things', sa.Column('colour', sa.Text, server_default='red'))\n"
    ),
}


def things(scripts: Path, revision: int) -> Schema:
    metadata = sa.MetaData()
    columns = [sa.Column("name", sa.Text, primary_key=True)]
    columns += [sa.Column("colour", sa.Text, server_default="red")] if revision > 1 else []
    sa.Table("things", metadata, *columns)
    return Schema("things", metadata, f"things_{revision}", scripts)


def opened(database: str, tmp_path: Path, revision: int) -> Database:
    for name, text in list(SCRIPTS.items())[:revision]:
        (tmp_path / name).write_text(text)
    where = database or tmp_path / "things.db"
    made = Database(where, [things(tmp_path, revision)], namespace="kvstitch_things")
    made.start()
    return made


def test_an_earlier_revision_is_upgraded_once(database: str, tmp_path: Path) -> None:
    old = opened(database, tmp_path, 1)
    with old.write() as write:
        write.exec_driver_sql("INSERT INTO things VALUES ('fox')")
    old.close()
    for _ in range(2):
        new = opened(database, tmp_path, 2)
        with new.read() as read:
            assert read.exec_driver_sql("SELECT name, colour FROM things").all() == [("fox", "red")]
            assert read.exec_driver_sql("SELECT * FROM alembic_version").all() == [("things_2",)]
        new.close()


def test_of_two_stores_in_one_database_one_is_upgraded(database: str, tmp_path: Path) -> None:
    """Their scripts are in one folder, so that Alembic knows the revision of the other, too."""
    (tmp_path / "others.py").write_text(SCRIPTS["first.py"].replace("things", "others"))
    metadata = sa.MetaData()
    sa.Table("others", metadata, sa.Column("name", sa.Text, primary_key=True))
    others = Schema("others", metadata, "others_1", tmp_path)
    where = database or tmp_path / "things.db"
    for revision in (1, 2):
        (tmp_path / list(SCRIPTS)[revision - 1]).write_text(list(SCRIPTS.values())[revision - 1])
        made = Database(where, [others, things(tmp_path, revision)], namespace="kvstitch_things")
        made.start()
        with made.read() as read:
            found = read.exec_driver_sql("SELECT version_num FROM alembic_version").scalars()
            assert sorted(found) == ["others_1", f"things_{revision}"]
        made.close()


def test_a_new_database_gets_the_newest_tables(database: str, tmp_path: Path) -> None:
    made = opened(database, tmp_path, 2)
    with made.write() as write:
        write.exec_driver_sql("INSERT INTO things (name) VALUES ('fox')")
    with made.read() as read:
        assert read.exec_driver_sql("SELECT * FROM things").all() == [("fox", "red")]
    made.close()


def test_a_later_revision_is_refused(database: str, tmp_path: Path) -> None:
    opened(database, tmp_path, 2).close()
    (tmp_path / "colour.py").unlink()
    with pytest.raises(WrongSchema, match="things_2"):
        opened(database, tmp_path, 1)
