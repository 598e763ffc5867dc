"""The catalog's tables, and the upgrade of files from older releases."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from retriever.documents import canonical_metadata
from retriever.errors import CatalogUnsupported
from retriever.index import bm25
from retriever.sql.connection import SqliteConnection

SCHEMA_VERSION = 4

# `state` has one row. With each change the generation rises by one and the token is new, so that a
# restored backup that reaches the same generation again is still recognised as different.
_STATE = """
CREATE TABLE state (generation INTEGER NOT NULL, token TEXT NOT NULL);
INSERT INTO state VALUES (0, 'empty');
CREATE TABLE spaces (
    space_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    revision TEXT NOT NULL,
    dim INTEGER NOT NULL,
    UNIQUE (name, revision, dim)
);
"""

# A scope's row exists as long as the scope has documents. `sparse_<scope_id>` is its full-text
# table, created with its first document (see bm25.py). A row of `documents` is the current revision
# of one document.
_DOCUMENTS = """
CREATE TABLE scopes (
    scope_id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    collection TEXT NOT NULL,
    stale INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, collection)
);
CREATE TABLE documents (
    document INTEGER PRIMARY KEY,
    scope_id INTEGER NOT NULL REFERENCES scopes,
    doc_id TEXT NOT NULL,
    revision TEXT NOT NULL,
    space_id INTEGER NOT NULL REFERENCES spaces,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    num_chars INTEGER NOT NULL,
    pinned INTEGER NOT NULL,
    title TEXT NOT NULL,
    metadata TEXT NOT NULL,
    text TEXT NOT NULL,
    UNIQUE (scope_id, doc_id)
);
CREATE INDEX documents_by_space ON documents (space_id);
CREATE TABLE chunks (
    chunk_id INTEGER PRIMARY KEY AUTOINCREMENT,
    document INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
    ordinal INTEGER NOT NULL,
    char_start INTEGER NOT NULL,
    char_end INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    text TEXT NOT NULL,
    UNIQUE (document, ordinal)
);
"""

_VECTORS = """
CREATE TABLE vectors (
    chunk_id INTEGER PRIMARY KEY REFERENCES chunks ON DELETE CASCADE,
    space_id INTEGER NOT NULL REFERENCES spaces,
    vector BLOB NOT NULL
);
"""

# See companion_table.py. A companion is no foreign key, because the rows that name it outlive it.
_COMPANIONS = """
CREATE TABLE accompanied (
    chunk_id INTEGER PRIMARY KEY REFERENCES chunks ON DELETE CASCADE,
    kind TEXT NOT NULL,
    exact INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE companions (
    chunk_id INTEGER NOT NULL REFERENCES chunks ON DELETE CASCADE,
    position INTEGER NOT NULL,
    companion_id INTEGER NOT NULL,
    PRIMARY KEY (chunk_id, position)
) WITHOUT ROWID;
CREATE INDEX companions_by_companion ON companions (companion_id);
CREATE TABLE primers (
    scope_id INTEGER NOT NULL REFERENCES scopes ON DELETE CASCADE,
    number INTEGER NOT NULL,
    position INTEGER NOT NULL,
    chunk_id INTEGER NOT NULL REFERENCES chunks ON DELETE CASCADE,
    PRIMARY KEY (scope_id, number, position)
);
CREATE INDEX primers_by_chunk ON primers (chunk_id);
"""

# Where pages, slides, sheets and headings begin in a document's text (see marks.py).
_MARKS = """
CREATE TABLE marks (
    document INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
    is_heading INTEGER NOT NULL,
    start INTEGER NOT NULL,
    kind TEXT NOT NULL,
    label TEXT NOT NULL,
    PRIMARY KEY (document, is_heading, start)
) WITHOUT ROWID;
"""

# The first release had no tenants, so everything it stored belongs to the default scope. `vectors`
# refers to the table `chunks` by name and stays unchanged. The update of sqlite_sequence makes sure
# that no chunk id is used twice.
_FROM_1 = f"""
ALTER TABLE documents RENAME TO documents_1;
ALTER TABLE chunks RENAME TO chunks_1;
DROP INDEX documents_by_space;
{_DOCUMENTS};
INSERT INTO scopes (tenant, collection)
    SELECT '', 'default' WHERE EXISTS (SELECT 1 FROM documents_1);
INSERT INTO documents
    SELECT documents_1.rowid, scope_id, doc_id, revision, space_id, created, updated, num_chars,
           0, title, metadata, text
    FROM documents_1 JOIN scopes;
INSERT INTO chunks
    SELECT chunk_id, documents.document, ordinal, char_start, char_end, tokens, chunks_1.text
    FROM chunks_1 JOIN documents ON documents.doc_id = chunks_1.doc_id;
INSERT INTO sqlite_sequence (name, seq)
    SELECT 'chunks', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'chunks');
UPDATE sqlite_sequence
    SET seq = coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'chunks_1'), 0)
    WHERE name = 'chunks';
DROP TABLE chunks_1;
DROP TABLE documents_1;
"""


def prepare(connection: SqliteConnection, path: Path) -> None:
    """Create the schema in a new file, or upgrade an older one, in one transaction.

    Foreign keys are off meanwhile, because dropping a table would delete the rows that refer to it.

    Raises:
        CatalogUnsupported: the schema has another version, or SQLite has no full-text search.
    """
    try:
        connection.execute("CREATE VIRTUAL TABLE temp.probe USING fts5(body)")
        connection.execute("DROP TABLE temp.probe")
    except sqlite3.OperationalError as error:
        raise CatalogUnsupported(
            f"this Python's SQLite has no full-text search: {error}"
        ) from error
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("PRAGMA legacy_alter_table = ON")
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            _run(connection, _STATE + _DOCUMENTS + _VECTORS + _COMPANIONS + _MARKS)
        elif version in (1, 2, 3):
            if version == 1:
                _run(connection, _FROM_1)
                _index_words(connection)
            if version < 3:
                _run(connection, _COMPANIONS)
            _run(connection, _MARKS)
            _marks_from_outlines(connection)
        elif version != SCHEMA_VERSION:
            raise CatalogUnsupported(
                f"{path} has schema version {version}, this release reads up to {SCHEMA_VERSION}"
            )
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise
    connection.execute("PRAGMA legacy_alter_table = OFF")
    connection.execute("PRAGMA foreign_keys = ON")


def _run(connection: sqlite3.Connection, script: str) -> None:
    """Run the statements one by one, because executescript() would commit in between."""
    for statement in script.split(";"):
        connection.execute(statement)


def _marks_from_outlines(connection: sqlite3.Connection) -> None:
    """Earlier releases kept pages and headings in the metadata, as `outline`."""
    query = (
        "SELECT document, num_chars, metadata FROM documents "
        "WHERE json_type(metadata, '$.outline') = 'object'"
    )
    for document, num_chars, text in connection.execute(query).fetchall():
        metadata = json.loads(text)
        outline = metadata.pop("outline")
        if not outline.keys() <= {"pages", "headings"}:
            continue  # it is the user's own
        rows = [(0, start, "page", str(n)) for n, start in enumerate(outline.get("pages", []), 1)]
        rows += [(1, start, "heading", label) for start, _, label in outline.get("headings", [])]
        connection.executemany(
            "INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?)",
            [(document, *row) for row in rows if row[1] < num_chars and row[3]],
        )
        connection.execute(
            "UPDATE documents SET metadata = ? WHERE document = ?",
            (canonical_metadata(metadata), document),
        )


def _index_words(connection: SqliteConnection) -> None:
    query = (
        "SELECT scope_id, chunk_id, title, chunks.text FROM chunks JOIN documents USING (document)"
    )
    for scope_id, *words in connection.execute(query):
        bm25.add(connection, scope_id, [tuple(words)])
