"""Creates the tables of a store, and brings older ones up to date with Alembic.

A database says in `alembic_version` which revision of each store it holds. A new one gets all
tables as they are now; an older one runs the scripts that follow its revision. Alembic is imported
for that alone: it takes half a second to load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateColumn

from retriever.sql.errors import WrongSchema

POSTGRESQL_ONLY = {"only": "postgresql"}
"""`info` of tables and columns that SQLite's file has not."""
SQLITE_ONLY = {"only": "sqlite"}


@dataclass(frozen=True)
class Schema:
    """The tables of one store.

    Attributes:
        name: Of the store; the ids of its revisions begin with it.
        metadata: The tables as they are now.
        head: The id of the newest revision.
        scripts: Folder of Alembic's revision scripts.
        oldest: The columns of the tables that release 0.1.0 made, before there were revisions: a
            database with these is of revision 0. None: that release had no such store.
    """

    name: str
    metadata: sa.MetaData
    head: str
    scripts: Path
    oldest: Mapping[str, frozenset[str]] | None = None

    def tables(self, dialect: str) -> list[sa.Table]:
        """Return the tables that a database of this dialect has, referred ones first."""
        return [table for table in self.metadata.sorted_tables if _has(table, dialect)]


def prepare(connection: sa.Connection, schema: Schema, database: str) -> None:
    """Create the store's tables, or bring them to the newest revision."""
    dialect = connection.dialect.name
    version = sa.Table("alembic_version", sa.MetaData(),
                       sa.Column("version_num", sa.String(32), primary_key=True))  # fmt: skip
    namespace = None if dialect == "sqlite" else database
    inspector = sa.inspect(connection)
    there = set(inspector.get_table_names(namespace))
    if "alembic_version" not in there:
        version.create(connection, checkfirst=False)
    revisions = set(connection.scalars(sa.select(version.c.version_num)))
    if schema.head in revisions:
        return
    own = {each for each in revisions if each.startswith(f"{schema.name}_")}
    if own:
        _upgrade(connection, schema, own.pop(), database)
        return
    tables = schema.tables(dialect)
    if present := [table for table in tables if table.name in there]:
        columns = inspector.get_multi_columns(namespace, filter_names=[t.name for t in present])
        found = {name: {c["name"] for c in each} for (_, name), each in columns.items()}
        if found != {name: set(each) for name, each in (schema.oldest or {}).items()}:
            raise WrongSchema(
                f"{database} holds tables that no release of kvstitch has made: start with a new "
                "data folder or database, and ingest the documents again"
            )
        before = f"{schema.name}_0"
        connection.execute(version.insert(), {"version_num": before})
        _upgrade(connection, schema, before, database)
        return
    schema.metadata.create_all(connection, tables, checkfirst=False)
    connection.execute(version.insert(), {"version_num": schema.head})


def _upgrade(connection: sa.Connection, schema: Schema, revision: str, database: str) -> None:
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory
    from alembic.script.revision import RevisionError
    from alembic.util import CommandError

    scripts = ScriptDirectory(str(schema.scripts), version_locations=[str(schema.scripts)])
    try:
        scripts.get_revisions(revision)
    except (RevisionError, CommandError) as error:
        raise WrongSchema(
            f"{database} has schema revision {revision}, which no release up to this one has made "
            f"({schema.head}): use the release that wrote it, or start with another --data-dir or "
            "database and ingest the documents again"
        ) from error
    environment = EnvironmentContext(
        Config(), scripts, fn=lambda *_: scripts._upgrade_revs(schema.head, revision)
    )
    environment.configure(connection=connection)
    environment.run_migrations()


def _has(element: sa.Table | sa.Column[object], dialect: str) -> bool:
    return bool(element.info.get("only", dialect) == dialect)


@compiles(CreateColumn)
def _create_column(element: CreateColumn, compiler: Any, **options: Any) -> Any:
    if not _has(element.element, compiler.dialect.name):
        return None  # it is left out
    return compiler.visit_create_column(element, **options)
