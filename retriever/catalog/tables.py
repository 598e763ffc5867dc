"""The catalog's tables.

`state` has one row. With each change the generation rises by one and the token is new, so that a
restored backup that reaches the same generation again is still recognised as different. A row of
`documents` is the current revision of one document; `readers` is its reading group
(reading_groups.py), `writers` who may change it. A scope's row exists as long as the scope has
documents.

Where they differ: SQLite has the words of chunks in tables of FTS5, one per scope (bm25.py), and
`scopes.stale` marks those that hold removed words or have grown, `analyser` and `old_words` say
which tables they are. PostgreSQL has them in `postings`; `changes` is what other gateways follow
(index_mirror.py), `fields` is the metadata for filters (`metadata` keeps how a number was written),
and the folded columns are for searches by name.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from kvstitch.retriever.scope import ALL_WRITERS
from kvstitch.retriever.sql.database import Database
from kvstitch.retriever.sql.expressions import Jsonb, Name, Number, required
from kvstitch.retriever.sql.revisions import POSTGRESQL_ONLY, SQLITE_ONLY, Schema, add_column

# What makes a catalog of this release of older ones. A new database gets the newest tables.


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


def without_writers(connection: sa.Connection) -> None:
    """What was stored before may be changed by all who may read it, until it gets writers."""
    add_column(connection, "documents", "writers", sa.Text, ALL_WRITERS)


def without_owners_of_primers(connection: sa.Connection) -> None:
    """What stands before chunks was chosen by readers alone. Primers are made anew, and chunks
    behind others that their writers may not have written get others: of a kind that is none, they
    are not used, and are purged when that happens."""
    add_column(connection, "primers", "writers", sa.Text, ALL_WRITERS)
    connection.exec_driver_sql("DELETE FROM primers")
    connection.exec_driver_sql(
        "UPDATE accompanied SET kind = 'untrusted' WHERE chunk_id IN (SELECT pair.chunk_id FROM "
        "companions AS pair JOIN chunks AS own ON own.chunk_id = pair.chunk_id "
        "JOIN documents AS after ON after.document = own.document "
        "JOIN chunks AS other ON other.chunk_id = pair.companion_id "
        "JOIN documents AS before ON before.document = other.document "
        "WHERE before.document <> after.document AND before.writers <> '' AND "
        "(before.writers <> after.writers OR (before.writers = '*' AND "
        "before.readers <> after.readers)))"
    )


def without_next_vectors(connection: sa.Connection) -> None:
    """A change of the embedder was refused."""
    next_vectors.create(connection, checkfirst=False)


NAMESPACE = "kvstitch_catalog"
WRITING = 0x6B76_0002  # number of the advisory lock: one write at a time, as in SQLite

metadata = sa.MetaData()


def _refers(column: str) -> sa.ForeignKey:
    return sa.ForeignKey(column, ondelete="CASCADE")


def _of_chunk() -> sa.Column[int]:
    chunk = _refers("chunks.chunk_id")
    return sa.Column("chunk_id", Number, chunk, primary_key=True, autoincrement=False)


state = sa.Table(
    "state", metadata,
    *required(sa.BigInteger, "generation"),
    *required(sa.Text, "token"),
)  # fmt: skip
spaces = sa.Table(
    "spaces", metadata,
    sa.Column("space_id", Number, sa.Identity(), primary_key=True),
    *required(sa.Text, "name", "revision"),
    *required(sa.Integer, "dim"),
    sa.UniqueConstraint("name", "revision", "dim"),
)  # fmt: skip
scopes = sa.Table(
    "scopes", metadata,
    sa.Column("scope_id", Number, sa.Identity(), primary_key=True),
    *required(Name, "tenant", "collection"),
    *required(sa.Integer, "stale", default="0", info=SQLITE_ONLY),
    *required(sa.Text, "analyser", "old_words", default="", info=SQLITE_ONLY),
    sa.UniqueConstraint("tenant", "collection"),
    sqlite_autoincrement=True,
)  # fmt: skip
documents = sa.Table(
    "documents", metadata,
    sa.Column("document", Number, sa.Identity(), primary_key=True),
    sa.Column("scope_id", Number, sa.ForeignKey("scopes.scope_id"), nullable=False),
    *required(Name, "doc_id"),
    *required(sa.Text, "revision"),
    sa.Column("space_id", Number, sa.ForeignKey("spaces.space_id"), nullable=False),
    *required(sa.Double, "created", "updated"),
    *required(sa.Integer, "num_chars", "pinned"),
    *required(sa.Text, "title", "metadata", "text"),
    sa.Column("fields", Jsonb, sa.Computed("CAST(metadata AS JSONB)", persisted=True),
              nullable=False, info=POSTGRESQL_ONLY),
    *required(sa.Text, "folded_id", "folded_title", default="", info=POSTGRESQL_ONLY),
    *required(Name, "readers", default=""),
    *required(sa.Text, "writers", default=ALL_WRITERS),  # as in rows of earlier releases
    sa.UniqueConstraint("scope_id", "doc_id"),
    sa.Index("documents_by_space", "space_id"),
    sa.Index("documents_by_readers", "scope_id", "readers"),
)  # fmt: skip
chunks = sa.Table(
    "chunks", metadata,
    sa.Column("chunk_id", Number, sa.Identity(), primary_key=True),
    sa.Column("document", Number, _refers("documents.document"), nullable=False),
    *required(sa.Integer, "ordinal", "char_start", "char_end", "tokens"),
    *required(sa.Text, "text"),
    sa.UniqueConstraint("document", "ordinal"),
    sqlite_autoincrement=True,
)  # fmt: skip


def _vectors(name: str) -> sa.Table:
    space = sa.Column("space_id", Number, sa.ForeignKey("spaces.space_id"), nullable=False)
    return sa.Table(name, metadata, _of_chunk(), space, *required(sa.LargeBinary, "vector"))


vectors = _vectors("vectors")
# Those of the embedder that is to answer next, of the chunks up to an id (see vector_renewal.py).
next_vectors = _vectors("next_vectors")
# Where pages, slides, sheets and headings begin in a document's text (see documents.py).
marks = sa.Table(
    "marks", metadata,
    sa.Column("document", Number, _refers("documents.document"), primary_key=True),
    sa.Column("is_heading", sa.Integer, primary_key=True),
    sa.Column("start", sa.Integer, primary_key=True),
    *required(sa.Text, "kind", "label"),
    sqlite_with_rowid=False,
)  # fmt: skip

# Which chunks a chunk is precomputed behind (prefix_chunks.py). `companion_id` is no foreign key,
# because the rows that name it outlive it.
#     made     its KV behind them is stored
#     exact    its KV behind the instructions alone is stored
#     few_of   chunks that it could stand behind when they were too few; 0: there were enough
_FEW = sa.text("few_of > 0")
accompanied = sa.Table(
    "accompanied", metadata,
    _of_chunk(),
    *required(sa.Text, "kind"),
    *required(sa.Integer, "exact", default="0"),
    *required(sa.Integer, "made", default="1"),  # as in rows of gateways of earlier releases
    *required(sa.Integer, "few_of", default="0"),
    sa.Index("accompanied_few", "few_of", sqlite_where=_FEW, postgresql_where=_FEW),
)  # fmt: skip
companions = sa.Table(
    "companions", metadata,
    sa.Column("chunk_id", Number, _refers("chunks.chunk_id"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    *required(Number, "companion_id"),
    sa.Index("companions_by_companion", "companion_id"),
    sqlite_with_rowid=False,
)  # fmt: skip
primers = sa.Table(
    "primers", metadata,
    sa.Column("scope_id", Number, _refers("scopes.scope_id"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("chunk_id", Number, _refers("chunks.chunk_id"), nullable=False),
    *required(Name, "readers", default=""),
    *required(sa.Text, "writers", default=ALL_WRITERS),
    sa.Index("primers_by_chunk", "chunk_id"),
)  # fmt: skip

changes = sa.Table(
    "changes", metadata,
    sa.Column("generation", sa.BigInteger, primary_key=True, autoincrement=False),
    *required(sa.Text, "token", "tenant", "collection"),
    *required(sa.ARRAY(sa.BigInteger), "removed", "added"),
    info=POSTGRESQL_ONLY,
)  # fmt: skip
# The words of chunks (see index/postings.py).
scope_words = sa.Table(
    "scope_words", metadata,
    sa.Column("scope_id", sa.BigInteger, _refers("scopes.scope_id"), primary_key=True),
    *required(sa.BigInteger, "chunks", "words"),
    info=POSTGRESQL_ONLY,
)  # fmt: skip
chunk_words = sa.Table(
    "chunk_words", metadata,
    sa.Column("chunk_id", sa.BigInteger, _refers("chunks.chunk_id"), primary_key=True),
    *required(sa.Integer, "length"),
    *required(sa.Text, "analyser", default=""),  # as in rows of gateways of earlier releases
    info=POSTGRESQL_ONLY,
)  # fmt: skip
postings = sa.Table(
    "postings", metadata,
    sa.Column("scope_id", sa.BigInteger, primary_key=True),
    sa.Column("word", Name, primary_key=True),
    sa.Column("chunk_id", sa.BigInteger, _refers("chunks.chunk_id"), primary_key=True),
    *required(sa.ARRAY(sa.Integer), "positions"),
    sa.Index("postings_by_chunk", "chunk_id"),
    info=POSTGRESQL_ONLY,
)  # fmt: skip


@sa.event.listens_for(state, "after_create")
def _begin_empty(table: sa.Table, connection: sa.Connection, **_: object) -> None:
    connection.execute(state.insert(), {"generation": 0, "token": "empty"})


@sa.event.listens_for(changes, "after_create")
def _log_empty(table: sa.Table, connection: sa.Connection, **_: object) -> None:
    row = {"generation": 0, "token": "empty", "tenant": "", "collection": ""}
    connection.execute(changes.insert(), row | {"removed": [], "added": []})


_UPGRADES = {"catalog_4": from_0_2_0, "catalog_5": without_writers,
             "catalog_6": without_owners_of_primers,
             "catalog_7": without_next_vectors}  # fmt: skip
SCHEMA = Schema("catalog", metadata, "catalog_1", _UPGRADES)


def catalog_database(where: Path | str, *, connections: int = 16) -> Database:
    """The database of a catalog, not opened."""
    return Database(
        where, [SCHEMA], namespace=NAMESPACE, connections=connections, write_lock=WRITING
    )
