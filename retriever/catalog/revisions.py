"""What makes a catalog of this release of older ones. A new database gets the newest tables."""

from __future__ import annotations

import sqlalchemy as sa

from retriever.sql.expressions import Name
from retriever.sql.revisions import add_column

_NEW_IN_0_2_0 = """
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


def from_0_1_0(connection: sa.Connection) -> None:
    """Release 0.1.0 had a file of SQLite alone. It kept where pages and headings begin in the
    metadata of a document, as `outline`, and computed no chunk behind others."""
    for statement in _NEW_IN_0_2_0.split(";"):
        connection.exec_driver_sql(statement)


def from_0_2_0(connection: sa.Connection) -> None:
    """New are reading groups, what is known of prefixes, and whose words chunks have.

    Prefixes that were chosen are taken to be stored, and empty ones are looked at again. Words of
    earlier releases are of no revision of the analyser, and are made anew while they are searched.
    """
    for table in ("documents", "primers"):
        add_column(connection, table, "readers", Name, "")
    add_column(connection, "accompanied", "made", sa.Integer, "1")
    add_column(connection, "accompanied", "few_of", sa.Integer, "0")
    for statement in (
        "CREATE INDEX documents_by_readers ON documents (scope_id, readers)",
        "CREATE INDEX accompanied_few ON accompanied (few_of) WHERE few_of > 0",
        "UPDATE accompanied SET few_of = 1 WHERE NOT EXISTS (SELECT 1 FROM companions "
        "WHERE companions.chunk_id = accompanied.chunk_id)",
    ):
        connection.exec_driver_sql(statement)
    if connection.dialect.name == "postgresql":
        add_column(connection, "chunk_words", "analyser", sa.Text, "")
        return
    for name in ("analyser", "old_words"):
        add_column(connection, "scopes", name, sa.Text, "")
    connection.exec_driver_sql("UPDATE scopes SET old_words = 'sparse_' || scope_id")
