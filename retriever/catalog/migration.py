"""Copies a catalog from its SQLite file to PostgreSQL: `kvstitch migrate`."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, or_, select

from retriever.catalog import queries, tables
from retriever.catalog.catalog import Catalog
from retriever.errors import DatabaseError
from retriever.index import postings
from retriever.sql.copying import copy_table, go_on_after

_FURTHER = (tables.chunks, tables.vectors, tables.accompanied, tables.companions, tables.primers,
            tables.marks)  # fmt: skip
_NUMBERED = ((tables.spaces, "space_id"), (tables.scopes, "scope_id"),
             (tables.documents, "document"), (tables.chunks, "chunk_id"))  # fmt: skip


def copy_catalog(file: Path, target: Connection) -> dict[str, int]:
    """Copy everything, with ids and generation, so that a saved index stays right.

    Args:
        file: The catalog; it is brought up to date first.
        target: A transaction in empty tables of the catalog.

    Returns:
        How many documents and chunks were copied.

    Raises:
        DatabaseError: The file cannot be used, or holds what PostgreSQL cannot store.
    """
    catalog = Catalog(file)
    catalog.start()
    try:
        with catalog.database.read() as source:
            return _copy(source, target)
    finally:
        catalog.close()


def _copy(source: Connection, target: Connection) -> dict[str, int]:
    def folded(row: dict[str, Any]) -> dict[str, Any]:
        names = {"folded_id": row["doc_id"], "folded_title": row["title"]}
        return row | {column: name.casefold() for column, name in names.items()}

    _refuse_nul(source)
    copy_table(source, target, tables.spaces)
    copy_table(source, target, tables.scopes)
    documents = copy_table(source, target, tables.documents, change=folded)
    counts = {table.name: copy_table(source, target, table) for table in _FURTHER}
    _index_words(source, target)
    state = source.execute(select(tables.state)).mappings().one()
    target.execute(tables.state.update().values(**state))
    target.execute(tables.changes.delete())
    nothing = {"tenant": "", "collection": "", "removed": [], "added": []}
    target.execute(tables.changes.insert(), {**state, **nothing})
    for table, column in _NUMBERED:
        go_on_after(source, target, table, column)
    return {"documents": documents, "chunks": counts["chunks"]}


def _refuse_nul(source: Connection) -> None:
    columns = (tables.documents.c[name] for name in ("text", "title", "doc_id"))
    holds_nul = or_(*(func.instr(column, func.char(0)) > 0 for column in columns))
    found = source.scalars(select(tables.documents.c.doc_id).where(holds_nul).limit(3)).all()
    if found:
        raise DatabaseError(
            f"PostgreSQL stores no NUL characters, and these documents hold some: "
            f"{', '.join(map(repr, found))}; ingest them without, or delete them"
        )


def _index_words(source: Connection, target: Connection) -> None:
    documents, chunks = tables.documents, tables.chunks
    query = select(documents.c.scope_id, chunks.c.chunk_id).join_from(chunks, documents)
    rows = source.execute(query.order_by(documents.c.scope_id))
    for batch in rows.partitions(500):
        for scope_id, found in groupby(batch, key=lambda row: row.scope_id):
            ids = [row.chunk_id for row in found]
            postings.add(target, scope_id, queries.words_of(source, chunks.c.chunk_id, ids))
