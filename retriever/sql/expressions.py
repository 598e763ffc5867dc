"""What SQLAlchemy does not say for SQLite and PostgreSQL alike, or not fast enough."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

Number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""64 bits; in SQLite the type of a primary key that numbers rows."""
Name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""A text that is compared by code point, as SQLite does."""


def required(
    kind: Any, *names: str, default: str | None = None, **more: Any
) -> list[sa.Column[Any]]:
    """Return columns of a kind that are never NULL."""
    return [sa.Column(name, kind, nullable=False, server_default=default, **more) for name in names]


class Jsonb(sa.types.UserDefinedType[Any]):
    """PostgreSQL's JSONB. SQLAlchemy's own would import PostgreSQL's dialect in every process."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSONB"


class Listed(sa.TypeDecorator[Collection[Any]]):
    """Any number of values as one parameter: JSON for SQLite, an array for PostgreSQL."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, item: sa.types.TypeEngine[Any]) -> None:
        super().__init__()
        self.item = item

    def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
        kind = sa.ARRAY(self.item) if dialect.name == "postgresql" else sa.Text()
        return dialect.type_descriptor(kind)

    def process_bind_param(self, value: Collection[Any] | None, dialect: sa.Dialect) -> Any:
        values = list(value or ())
        return values if dialect.name == "postgresql" else json.dumps(values)


class among(FunctionElement[bool]):  # in lower case, because it is used as a function
    """Whether a column has one of any number of values, or of those of a named parameter."""

    # Not Boolean: SQLite has no such type, so `= 1` would be added, and no index be used.
    type: Any = sa.types.NullType()
    inherit_cache = True

    def __init__(self, column: sa.ColumnElement[Any], values: Collection[Any] | str) -> None:
        item = sa.Text() if isinstance(column.type, sa.Text) else sa.BigInteger()
        if isinstance(values, str):
            parameter = sa.bindparam(values, type_=Listed(item))
        else:
            parameter = sa.bindparam(None, values, type_=Listed(item))
        super().__init__(column, parameter)


@compiles(among, "sqlite")
def _among_sqlite(element: among, compiler: SQLCompiler, **options: Any) -> str:
    column, values = (compiler.process(each, **options) for each in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({values}))"


@compiles(among, "postgresql")
def _among_postgresql(element: among, compiler: SQLCompiler, **options: Any) -> str:
    column, values = (compiler.process(each, **options) for each in element.clauses)
    return f"{column} = ANY({values})"


def upsert(
    write: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]], *, replace: bool = True
) -> None:
    """Insert rows of the same columns; one whose primary key is there keeps its values, or gets new
    ones (`replace`)."""
    made: Any
    if write.dialect.name == "postgresql":  # each is loaded with its dialect
        from sqlalchemy.dialects.postgresql import insert as made
    else:
        from sqlalchemy.dialects.sqlite import insert as made
    if rows:
        insert = made(table)
        keys = [column.name for column in table.primary_key]
        new = {name: insert.excluded[name] for name in rows[0] if replace and name not in keys}
        update = insert.on_conflict_do_update(index_elements=keys, set_=new) if new else None
        write.execute(insert.on_conflict_do_nothing() if update is None else update, rows)


def driver_of(connection: sa.Connection) -> Any:
    """Return the driver's own connection, which answers in a part of SQLAlchemy's time."""
    return connection.connection.driver_connection


class Prepared:
    """A SELECT on the path of a request: compiled once, and run by the driver itself.

    SQLAlchemy's execution and its rows cost several times what SQLite takes to answer
    (docs/dependencies.md). Parameters are named with `bindparam` or `among`.
    """

    def __init__(self, statement: sa.Select[Any]) -> None:
        self._statement = statement
        self._compiled: dict[str, tuple[str, dict[str, Any], list[tuple[str, Any]]]] = {}

    def rows(self, connection: sa.Connection, **values: Any) -> list[tuple[Any, ...]]:
        """Return the rows as the driver makes them, columns in the order of the statement."""
        dialect = connection.dialect
        sql, defaults, processors = self._compiled.get(dialect.name) or self._compile(dialect)
        values = {**defaults, **values}
        for name, process in processors:
            values[name] = process(values[name])
        found: list[tuple[Any, ...]] = driver_of(connection).execute(sql, values).fetchall()
        return found

    def row(self, connection: sa.Connection, **values: Any) -> tuple[Any, ...] | None:
        """Return the first row, or None if there is none."""
        return next(iter(self.rows(connection, **values)), None)

    def _compile(self, dialect: sa.Dialect) -> tuple[str, dict[str, Any], list[tuple[str, Any]]]:
        chosen: Any = dialect
        if dialect.name == "sqlite":  # by name rather than by place
            chosen = type(chosen)(paramstyle="named")
        compiled = self._statement.compile(dialect=chosen)
        binds = {compiled.bind_names[bind]: bind.type for bind in compiled.bind_names}
        found = [(name, kind.dialect_impl(chosen).bind_processor(chosen))
                 for name, kind in binds.items()]  # fmt: skip
        processors = [(name, process) for name, process in found if process is not None]
        made = str(compiled), dict(compiled.params), processors
        self._compiled[dialect.name] = made
        return made
