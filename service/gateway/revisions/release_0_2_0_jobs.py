"""The jobs of release 0.2.0, the first with revisions. A new database gets the newest at once.

Release 0.1.0 had a file of SQLite alone, all content of documents in it, and no webhook.
"""

from alembic import op

revision = "jobs_1"
down_revision = "jobs_0"

STATEMENTS = (
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


def upgrade() -> None:
    """Add what 0.1.0 had not."""
    for statement in STATEMENTS:
        op.get_bind().exec_driver_sql(statement)
