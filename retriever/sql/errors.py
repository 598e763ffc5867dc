"""What can go wrong in a database, the same for SQLite and PostgreSQL.

DatabaseError
├── Unreachable      no connection, or it broke: what was under way may be tried again
├── AlreadyThere     a row breaks a rule of uniqueness
├── ValueRefused     a value that PostgreSQL cannot store, e.g. a NUL character in a text
├── WrongSchema      the tables are not those that this release reads
└── NotOpen          used before start() or after close()
"""

from __future__ import annotations

import sqlite3

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoneIsFree


class DatabaseError(Exception):
    """The database failed; the message says how."""


class Unreachable(DatabaseError): ...


class AlreadyThere(DatabaseError): ...


class ValueRefused(DatabaseError): ...


class WrongSchema(DatabaseError): ...


class NotOpen(DatabaseError): ...


def classified(error: Exception) -> DatabaseError:
    """Return the DatabaseError for an error of SQLAlchemy or a driver."""
    if isinstance(error, DatabaseError):
        return error
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sqlite3.Error):
        unique = getattr(cause, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_UNIQUE
        return AlreadyThere(str(cause)) if unique else DatabaseError(str(cause))
    if isinstance(cause, NoneIsFree):  # of the pool
        return Unreachable(f"PostgreSQL cannot be reached: {cause}")
    if isinstance(cause, SQLAlchemyError):
        return DatabaseError(str(cause))
    import psycopg

    match cause:
        case psycopg.errors.UniqueViolation():
            return AlreadyThere(str(cause))
        case psycopg.DataError():
            return ValueRefused(str(cause))
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return Unreachable(f"PostgreSQL cannot be reached: {cause}")
    return DatabaseError(f"PostgreSQL failed: {cause}")
