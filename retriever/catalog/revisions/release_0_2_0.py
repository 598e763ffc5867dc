"""The tables of release 0.2.0, the first with revisions. A new database gets the newest at once.

Release 0.1.0 had a file of SQLite alone. It kept where pages and headings begin in the metadata of
a document, as `outline`, and computed no chunk behind others.
"""

from alembic import op

revision = "catalog_1"
down_revision = "catalog_0"

TABLES = """
CREATE TABLE marks (
    document INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
    is_heading INTEGER NOT NULL, start INTEGER NOT NULL,
    kind TEXT NOT NULL, label TEXT NOT NULL,
    PRIMARY KEY (document, is_heading, start)
) WITHOUT ROWID;
CREATE TABLE accompanied (
    chunk_id INTEGER NOT NULL PRIMARY KEY REFERENCES chunks ON DELETE CASCADE,
    kind TEXT NOT NULL, exact INTEGER DEFAULT 0 NOT NULL
);
CREATE TABLE companions (
    chunk_id INTEGER NOT NULL REFERENCES chunks ON DELETE CASCADE,
    position INTEGER NOT NULL, companion_id INTEGER NOT NULL,
    PRIMARY KEY (chunk_id, position)
) WITHOUT ROWID;
CREATE INDEX companions_by_companion ON companions (companion_id);
CREATE TABLE primers (
    scope_id INTEGER NOT NULL REFERENCES scopes ON DELETE CASCADE,
    number INTEGER NOT NULL, position INTEGER NOT NULL,
    chunk_id INTEGER NOT NULL REFERENCES chunks ON DELETE CASCADE,
    PRIMARY KEY (scope_id, number, position)
);
CREATE INDEX primers_by_chunk ON primers (chunk_id);
INSERT OR IGNORE INTO marks
    SELECT document, 0, page.value, 'page', page.key + 1
    FROM documents, json_each(documents.metadata, '$.outline.pages') AS page;
INSERT OR IGNORE INTO marks
    SELECT document, 1, heading.value ->> 0, 'heading', heading.value ->> 2
    FROM documents, json_each(documents.metadata, '$.outline.headings') AS heading;
UPDATE documents SET metadata = json_remove(metadata, '$.outline')
    WHERE document IN (SELECT document FROM marks)
"""


def upgrade() -> None:
    """Add what 0.1.0 had not."""
    for statement in TABLES.split(";"):
        op.get_bind().exec_driver_sql(statement)
