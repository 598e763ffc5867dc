"""Copies tables from an SQLite file to PostgreSQL, within a transaction of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, func, select, text, true


def copy_table(
    source: Connection,
    target: Connection,
    table: Table,
    *,
    where: ColumnElement[bool] | None = None,
    change: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: row,
) -> int:
    """Copy rows with the numbers that they have; return how many.

    Args:
        source: The file.
        target: The database.
        table: In both.
        where: Which rows; None: all.
        change: A row on its way, which may get values of columns that only PostgreSQL has.
    """
    columns = [column for column in table.columns if "only" not in column.info]
    rows = source.execute(select(*columns).where(true() if where is None else where))
    cursor: Any = target.connection.cursor()
    copied = 0
    for batch in rows.mappings().partitions(1000):
        changed = [change(dict(row)) for row in batch]
        with cursor.copy(f"COPY {table.name} ({', '.join(changed[0])}) FROM STDIN") as copy:
            for row in changed:
                copy.write_row(tuple(row.values()))
        copied += len(changed)
    return copied


def go_on_after(source: Connection, target: Connection, table: Table, column: str) -> None:
    """Give out numbers in this column that come after all that SQLite has given out."""
    last = 0
    if table.dialect_options["sqlite"]["autoincrement"]:
        given = text("SELECT seq FROM sqlite_sequence WHERE name = :name")
        last = source.scalar(given, {"name": table.name}) or 0
    there = target.scalar(select(func.max(table.c[column]))) or 0
    if last := max(int(last), int(there)):
        sequence = func.pg_get_serial_sequence(table.name, column)
        target.execute(select(func.setval(sequence, last)))
