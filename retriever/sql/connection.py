"""What a store sees of its database: the same few calls over SQLite and PostgreSQL.

SQL is written so that both read it: `?` for parameters, RETURNING instead of last row ids, ON
CONFLICT, and CAST where a parameter alone would not tell its type. What differs is an attribute of
the connection.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Protocol


class Row(Protocol):
    """A row, by column name or number; iterating over it yields the values."""

    def __getitem__(self, key: Any, /) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

    def keys(self) -> Any: ...


class Cursor(Protocol):
    """The rows of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection with a transaction under way.

    Attributes:
        in_numbers: what stands behind a column that must be one of several integers; the
            parameter is made by `listed`.
        in_texts: the same for strings.
        for_update: locks the rows that a SELECT finds, until the transaction ends.
        skip_locked: the same, without those that another transaction has locked.
    """

    in_numbers: str
    in_texts: str
    for_update: str
    skip_locked: str

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Any: ...

    def listed(self, values: Collection[Any]) -> Any:
        """Any number of values as one parameter."""


class SqliteConnection(sqlite3.Connection):
    """Transactions of one file do not write side by side, so no row needs a lock."""

    in_numbers = "IN (SELECT value FROM json_each(?))"
    in_texts = in_numbers
    for_update = ""
    skip_locked = ""

    def listed(self, values: Collection[Any]) -> str:
        return json.dumps(list(values))
