"""Copies tables from SQLite to PostgreSQL, within a transaction of the caller."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from retriever.sql.postgresql import PostgresqlConnection


def copy_table(
    source: sqlite3.Connection,
    target: PostgresqlConnection,
    table: str,
    columns: Sequence[str],
    *,
    where: str = "true",
    change: Callable[[list[Any]], list[Any]] = lambda row: row,
    further: Sequence[str] = (),
) -> int:
    """Copy rows with the numbers that they have; returns how many.

    Args:
        source: the file.
        target: its table must have these columns, too.
        table: in both.
        columns: which to copy.
        where: which rows; a condition for SQLite.
        change: a row on its way, which may get values of `further` columns.
        further: columns that only the target has.
    """
    rows = source.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE {where}")
    copied = 0
    names = ", ".join([*columns, *further])
    with target.raw.cursor().copy(f"COPY {table} ({names}) FROM STDIN".encode()) as copy:
        for row in rows:
            copy.write_row(change(list(row)))
            copied += 1
    return copied


def go_on_after(target: PostgresqlConnection, table: str, column: str, last: int) -> None:
    """The next number that is given out in this column comes after `last` and all that is there."""
    query = f"SELECT greatest(?, coalesce(max({column}), 0)) AS last FROM {table}"
    last = int(target.execute(query, (last,)).fetchone()["last"])
    if last:
        sequence = "pg_get_serial_sequence(?, ?)"
        target.execute(f"SELECT setval({sequence}, ?)", (table, column, last))


def last_given_out(source: sqlite3.Connection, table: str) -> int:
    """The last number that SQLite has given out in an AUTOINCREMENT column, 0 if none."""
    row = source.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
    return 0 if row is None else int(row[0])
