"""Creates the tables of a store, and brings older ones up to date.

A database says in `alembic_version` which revision of each store it holds. A new one gets all
tables as they are now; an older one goes through the upgrades that follow its revision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateColumn

from kvstitch.retriever.errors import WrongSchema

POSTGRESQL_ONLY = {"only": "postgresql"}
"""`info` of tables and columns that SQLite's file has not."""
SQLITE_ONLY = {"only": "sqlite"}

_version = sa.Table(
    "alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
)


@dataclass(frozen=True)
class Schema:
    """The tables of one store.

    Attributes:
        name: Of the store; the names of its revisions begin with it.
        metadata: The tables as they are now.
        first: The oldest revision that is upgraded.
        upgrades: What makes each later revision of the one before it, the newest last.
    """

    name: str
    metadata: sa.MetaData
    first: str
    upgrades: Mapping[str, Callable[[sa.Connection], None]] = field(default_factory=dict)

    @property
    def head(self) -> str:
        return [self.first, *self.upgrades][-1]


def prepare(connection: sa.Connection, schema: Schema, database: str) -> None:
    """Create the store's tables, or bring them to the newest revision."""
    dialect = connection.dialect.name
    namespace = None if dialect == "sqlite" else database
    there = set(sa.inspect(connection).get_table_names(namespace))
    if "alembic_version" not in there:
        _version.create(connection, checkfirst=False)
    revisions = set(connection.scalars(sa.select(_version.c.version_num)))
    if schema.head in revisions:
        return
    if own := [each for each in revisions if each.startswith(f"{schema.name}_")]:
        _upgrade(connection, schema, own[0], database)
        return
    tables = [table for table in schema.metadata.sorted_tables if _has(table, dialect)]
    if any(table.name in there for table in tables):
        raise WrongSchema(
            f"{database} holds tables without a revision, of release 0.1.0 or of none: open it "
            "once with 0.2.0, or start with a new data folder or database, and ingest anew"
        )
    schema.metadata.create_all(connection, tables, checkfirst=False)
    connection.execute(_version.insert(), {"version_num": schema.head})


def _upgrade(connection: sa.Connection, schema: Schema, revision: str, database: str) -> None:
    known = [schema.first, *schema.upgrades]
    if revision not in known:
        raise WrongSchema(
            f"{database} has schema revision {revision}, which no release up to this one has made "
            f"({schema.head}): use the release that wrote it, or start with another --data-dir or "
            "database and ingest the documents again"
        )
    for later in known[known.index(revision) + 1 :]:
        schema.upgrades[later](connection)
    of_store = _version.update().where(_version.c.version_num == revision)
    connection.execute(of_store.values(version_num=schema.head))


def add_column(connection: sa.Connection, table: str, name: str, kind: Any, default: str) -> None:
    """Add a column that is never NULL, with a value for the rows that there are."""
    column = sa.Column(name, kind, nullable=False, server_default=default)
    made = CreateColumn(column).compile(dialect=connection.dialect)
    connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {made}")


def _has(element: sa.Table | sa.Column[object], dialect: str) -> bool:
    return bool(element.info.get("only", dialect) == dialect)


@compiles(CreateColumn)
def _create_column(element: CreateColumn, compiler: Any, **options: Any) -> Any:
    if not _has(element.element, compiler.dialect.name):
        return None  # it is left out
    return compiler.visit_create_column(element, **options)
