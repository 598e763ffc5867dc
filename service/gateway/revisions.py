"""What makes a gateway's tables of older ones. A new database gets the newest (tables.py)."""

from __future__ import annotations

import sqlalchemy as sa

from retriever.sql.revisions import add_column

_JOBS_NEW_IN_0_2_0 = (
    "ALTER TABLE documents ADD COLUMN tokens INTEGER DEFAULT 0 NOT NULL",
    "ALTER TABLE documents ADD COLUMN spooled TEXT",
    "ALTER TABLE purges ADD COLUMN copies TEXT DEFAULT '[]' NOT NULL",
    "CREATE TABLE events (event_id TEXT NOT NULL PRIMARY KEY, body BLOB NOT NULL, "
    "attempts INTEGER NOT NULL, created DOUBLE NOT NULL, due DOUBLE NOT NULL)",
    "CREATE TABLE freed_files (name TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID",
    "CREATE TRIGGER freed_by_update AFTER UPDATE OF spooled ON documents "
    "WHEN OLD.spooled IS NOT NULL AND NEW.spooled IS NULL "
    "BEGIN INSERT OR IGNORE INTO freed_files VALUES (OLD.spooled); END",
    "CREATE TRIGGER freed_by_delete AFTER DELETE ON documents WHEN OLD.spooled IS NOT NULL "
    "BEGIN INSERT OR IGNORE INTO freed_files VALUES (OLD.spooled); END",
)


def jobs_from_0_1_0(connection: sa.Connection) -> None:
    """Release 0.1.0 had a file of SQLite alone, all content of documents in it, and no webhook."""
    for statement in _JOBS_NEW_IN_0_2_0:
        connection.exec_driver_sql(statement)


def jobs_from_0_2_0(connection: sa.Connection) -> None:
    """New are warnings and readers of documents; nothing is owed to a webhook.

    What was stored before is everybody's, was sent by somebody who could read everything, and
    nothing is known of what its text lacks.
    """
    for table, name, kind, default in (
        ("documents", "warnings", sa.Text, "[]"),
        ("sizes", "warnings", sa.Text, "[]"),
        ("jobs", "view", sa.Text, "*"),
        ("jobs", "readers", sa.Text, "[]"),
        ("receipts", "readers", sa.Text, "[]"),
        ("purges", "prompts", sa.Integer, "0"),
    ):
        add_column(connection, table, name, kind, default)
    connection.exec_driver_sql("DROP TABLE events")


def keys_from_0_1_0(connection: sa.Connection) -> None:
    """No key of release 0.1.0 is bound to an adapter."""
    add_column(connection, "keys", "adapter", sa.Text, "")


def keys_from_0_2_0(connection: sa.Connection) -> None:
    """New are groups. Earlier keys read everything of their tenant still."""
    add_column(connection, "keys", "groups", sa.Text, "*")
