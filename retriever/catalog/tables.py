"""The catalog's tables.

`state` has one row. With each change the generation rises by one and the token is new, so that a
restored backup that reaches the same generation again is still recognised as different. A row of
`documents` is the current revision of one document. A scope's row exists as long as the scope has
documents.

Where they differ: SQLite has the words of chunks in tables of FTS5, one per scope (bm25.py), and
`scopes.stale` marks those that hold removed words. PostgreSQL has them in `postings`; `changes` is
what other gateways follow (index_mirror.py), `fields` is the metadata for filters (`metadata` keeps
how a number was written), and the folded columns are for searches by name.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    Computed,
    Connection,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    event,
)

from retriever.errors import (
    CatalogError,
    CatalogNotStarted,
    CatalogUnreachable,
    CatalogUnsupported,
    InvalidDocument,
)
from retriever.sql.database import Database
from retriever.sql.errors import (
    DatabaseError,
    NotOpen,
    Unreachable,
    ValueRefused,
    WrongSchema,
)
from retriever.sql.expressions import Jsonb, Name, Number, required
from retriever.sql.revisions import POSTGRESQL_ONLY, SQLITE_ONLY, Schema

NAMESPACE = "kvstitch_catalog"
WRITING = 0x6B76_0002  # number of the advisory lock: one write at a time, as in SQLite

metadata = MetaData()


def _refers(column: str) -> ForeignKey:
    return ForeignKey(column, ondelete="CASCADE")


state = Table(
    "state", metadata,
    *required(BigInteger, "generation"),
    *required(Text, "token"),
)  # fmt: skip
spaces = Table(
    "spaces", metadata,
    Column("space_id", Number, Identity(), primary_key=True),
    *required(Text, "name", "revision"),
    *required(Integer, "dim"),
    UniqueConstraint("name", "revision", "dim"),
)  # fmt: skip
scopes = Table(
    "scopes", metadata,
    Column("scope_id", Number, Identity(), primary_key=True),
    *required(Name, "tenant", "collection"),
    *required(Integer, "stale", default="0", info=SQLITE_ONLY),
    UniqueConstraint("tenant", "collection"),
    sqlite_autoincrement=True,
)  # fmt: skip
documents = Table(
    "documents", metadata,
    Column("document", Number, Identity(), primary_key=True),
    Column("scope_id", Number, ForeignKey("scopes.scope_id"), nullable=False),
    *required(Name, "doc_id"),
    *required(Text, "revision"),
    Column("space_id", Number, ForeignKey("spaces.space_id"), nullable=False),
    *required(Double, "created", "updated"),
    *required(Integer, "num_chars", "pinned"),
    *required(Text, "title", "metadata", "text"),
    Column("fields", Jsonb, Computed("CAST(metadata AS JSONB)", persisted=True), nullable=False,
           info=POSTGRESQL_ONLY),
    *required(Text, "folded_id", "folded_title", default="", info=POSTGRESQL_ONLY),
    UniqueConstraint("scope_id", "doc_id"),
    Index("documents_by_space", "space_id"),
)  # fmt: skip
chunks = Table(
    "chunks", metadata,
    Column("chunk_id", Number, Identity(), primary_key=True),
    Column("document", Number, _refers("documents.document"), nullable=False),
    *required(Integer, "ordinal", "char_start", "char_end", "tokens"),
    *required(Text, "text"),
    UniqueConstraint("document", "ordinal"),
    sqlite_autoincrement=True,
)  # fmt: skip
vectors = Table(
    "vectors", metadata,
    Column("chunk_id", Number, _refers("chunks.chunk_id"), primary_key=True, autoincrement=False),
    Column("space_id", Number, ForeignKey("spaces.space_id"), nullable=False),
    *required(LargeBinary, "vector"),
)  # fmt: skip
# Where pages, slides, sheets and headings begin in a document's text (see documents.py).
marks = Table(
    "marks", metadata,
    Column("document", Number, _refers("documents.document"), primary_key=True),
    Column("is_heading", Integer, primary_key=True),
    Column("start", Integer, primary_key=True),
    *required(Text, "kind", "label"),
    sqlite_with_rowid=False,
)  # fmt: skip

# Which chunks a chunk is precomputed behind (prefix_chunks.py). `companion_id` is no foreign key,
# because the rows that name it outlive it.
accompanied = Table(
    "accompanied", metadata,
    Column("chunk_id", Number, _refers("chunks.chunk_id"), primary_key=True, autoincrement=False),
    *required(Text, "kind"),
    *required(Integer, "exact", default="0"),
)  # fmt: skip
companions = Table(
    "companions", metadata,
    Column("chunk_id", Number, _refers("chunks.chunk_id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    *required(Number, "companion_id"),
    Index("companions_by_companion", "companion_id"),
    sqlite_with_rowid=False,
)  # fmt: skip
primers = Table(
    "primers", metadata,
    Column("scope_id", Number, _refers("scopes.scope_id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("chunk_id", Number, _refers("chunks.chunk_id"), nullable=False),
    Index("primers_by_chunk", "chunk_id"),
)  # fmt: skip

changes = Table(
    "changes", metadata,
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    *required(Text, "token", "tenant", "collection"),
    *required(ARRAY(BigInteger), "removed", "added"),
    info=POSTGRESQL_ONLY,
)  # fmt: skip
# The words of chunks (see search/postings.py).
scope_words = Table(
    "scope_words", metadata,
    Column("scope_id", BigInteger, _refers("scopes.scope_id"), primary_key=True),
    *required(BigInteger, "chunks", "words"),
    info=POSTGRESQL_ONLY,
)  # fmt: skip
chunk_words = Table(
    "chunk_words", metadata,
    Column("chunk_id", BigInteger, _refers("chunks.chunk_id"), primary_key=True),
    *required(Integer, "length"),
    info=POSTGRESQL_ONLY,
)  # fmt: skip
postings = Table(
    "postings", metadata,
    Column("scope_id", BigInteger, primary_key=True),
    Column("word", Name, primary_key=True),
    Column("chunk_id", BigInteger, _refers("chunks.chunk_id"), primary_key=True),
    *required(ARRAY(Integer), "positions"),
    Index("postings_by_chunk", "chunk_id"),
    info=POSTGRESQL_ONLY,
)  # fmt: skip


@event.listens_for(state, "after_create")
def _begin_empty(table: Table, connection: Connection, **_: object) -> None:
    connection.execute(state.insert(), {"generation": 0, "token": "empty"})


@event.listens_for(changes, "after_create")
def _log_empty(table: Table, connection: Connection, **_: object) -> None:
    row = {"generation": 0, "token": "empty", "tenant": "", "collection": ""}
    connection.execute(changes.insert(), row | {"removed": [], "added": []})


SCHEMA = Schema("catalog", metadata, "catalog_1", Path(__file__).with_name("revisions"))


def catalog_database(where: Path | str, *, connections: int = 16) -> Database:
    """The database of a catalog, not opened; its errors are the retriever's.

    Args:
        where: The path of an SQLite file, or the address of PostgreSQL.
        connections: The most that are open to PostgreSQL at a time.
    """
    return Database(where, [SCHEMA], namespace=NAMESPACE, connections=connections,
                    write_lock=WRITING, error=_catalog_error)  # fmt: skip


def _catalog_error(error: DatabaseError) -> Exception:
    match error:
        case ValueRefused():
            return InvalidDocument(
                f"PostgreSQL cannot store it ({error}): leave NUL characters out"
            )
        case Unreachable():
            return CatalogUnreachable(str(error))
        case NotOpen():
            return CatalogNotStarted("call start() before the catalog is used")
        case WrongSchema():
            return CatalogUnsupported(str(error))
    return CatalogError(f"the catalog failed: {error}")
