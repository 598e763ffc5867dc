"""The catalog's statements that read. The caller holds a transaction on the given connection."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    and_,
    bindparam,
    func,
    literal_column,
    select,
)

from kvstitch.records.documents import Document as StoredDocument
from kvstitch.records.documents import DocumentMark
from kvstitch.retriever.catalog.tables import (
    changes,
    chunks,
    documents,
    marks,
    scopes,
    spaces,
    state,
    vectors,
)
from kvstitch.retriever.documents import CatalogState, Chunk, IndexChange
from kvstitch.retriever.embedders import EmbeddingSpace, Vectors
from kvstitch.retriever.index.full_text import ChunkWords
from kvstitch.retriever.scope import Scope, groups_of
from kvstitch.retriever.sql.expressions import Prepared, among


def _last_mark(is_heading: int) -> Any:
    """Select the last mark at or before a chunk: a heading, or a page, slide or sheet."""
    named = and_(
        marks.c.document == chunks.c.document,
        marks.c.is_heading == literal_column(str(is_heading)),
        marks.c.start <= chunks.c.char_start,
    )
    found = select(marks.c.label).where(named).order_by(marks.c.start.desc())
    return found.limit(literal_column("1")).scalar_subquery()


# The columns are the fields of Chunk, in their order.
_CHUNK = select(
    chunks.c.chunk_id, documents.c.doc_id, chunks.c.ordinal, chunks.c.text, documents.c.title,
    chunks.c.char_start, chunks.c.char_end, chunks.c.tokens, documents.c.revision,
    _last_mark(0).label("page"), _last_mark(1).label("heading"), documents.c.readers,
).join_from(chunks, documents)  # fmt: skip
_CHUNKS = Prepared(_CHUNK.where(among(chunks.c.chunk_id, "chunk_ids")))
_THE_DOCUMENT = and_(
    documents.c.scope_id == bindparam("scope_id"), documents.c.doc_id == bindparam("doc_id")
)
_CHUNKS_OF = Prepared(_CHUNK.where(_THE_DOCUMENT).order_by(chunks.c.ordinal))
_SOME_CHUNKS_OF = Prepared(
    _CHUNK.where(_THE_DOCUMENT, among(chunks.c.ordinal, "ordinals")).order_by(chunks.c.ordinal)
)
_METADATA = Prepared(
    select(*documents.c["doc_id", "metadata", "readers"]).where(
        documents.c.scope_id == bindparam("scope_id"), among(documents.c.doc_id, "doc_ids")
    )
)
_SCOPE = Prepared(
    select(scopes.c.scope_id).where(
        scopes.c.tenant == bindparam("tenant"), scopes.c.collection == bindparam("collection")
    )
)
_STATE = Prepared(select(state.c.generation, state.c.token))
_own_chunks = select(func.count()).where(chunks.c.document == documents.c.document)
_own_tokens = select(func.coalesce(func.sum(chunks.c.tokens), 0)).where(
    chunks.c.document == documents.c.document
)
# The columns are fields of a stored document.
INFO = select(
    documents.c.doc_id, documents.c.revision, documents.c.created, documents.c.updated,
    documents.c.num_chars, documents.c.title, documents.c.metadata, documents.c.pinned,
    documents.c.readers, documents.c.writers,
    _own_chunks.scalar_subquery().label("num_chunks"),
    _own_tokens.scalar_subquery().label("num_tokens"),
)  # fmt: skip


_WORDS = select(chunks.c.chunk_id, documents.c.title, chunks.c.text).join_from(chunks, documents)


def words_of(
    connection: Connection, column: ColumnElement[int], numbers: Collection[int]
) -> list[ChunkWords]:
    """Return number, title and text of the chunks of which a column is one of these numbers."""
    rows = connection.execute(_WORDS.where(among(column, numbers)))
    return [(row.chunk_id, row.title, row.text) for row in rows]


def is_scope(connection: Connection, scope_id: int) -> bool:
    query = select(scopes.c.scope_id).where(scopes.c.scope_id == scope_id)
    return connection.execute(query).first() is not None


def metadata_of(
    connection: Connection, doc_ids: Collection[str], scope: Scope
) -> dict[str, dict[str, Any]]:
    """Return the metadata of documents by doc_id, without those that are not stored."""
    values = {"scope_id": find_scope(connection, scope), "doc_ids": list(doc_ids)}
    return {
        doc_id: json.loads(text)
        for doc_id, text, readers in _METADATA.rows(connection, **values)
        if scope.view.shows(readers)
    }


def find_scope(connection: Connection, scope: Scope) -> int | None:
    """Return the number of a scope, or None if it has no documents."""
    row = _SCOPE.row(connection, tenant=scope.tenant, collection=scope.collection)
    return None if row is None else int(row[0])


def document_numbers(
    read: Connection, scope: Scope, doc_ids: Collection[str], *, changed: bool = True
) -> dict[str, int]:
    """Return the numbers of those documents of a scope that its view shows and its pen changes, or
    does not change, by their ids."""
    scope_id = find_scope(read, scope)
    named = documents.c.scope_id == scope_id, among(documents.c.doc_id, doc_ids)
    query = select(*documents.c["doc_id", "document", "readers", "writers"]).where(*named)
    return {
        row.doc_id: row.document
        for row in read.execute(query)
        if scope.view.shows(row.readers) and scope.pen.changes(row.writers) == changed
    }


def chunks_by_id(connection: Connection, chunk_ids: Collection[int]) -> dict[int, Chunk]:
    """Return the chunks of any scope that exist, by their ids."""
    if not chunk_ids:
        return {}
    return {row[0]: Chunk(*row) for row in _CHUNKS.rows(connection, chunk_ids=chunk_ids)}


def chunks_of(
    connection: Connection,
    scope_id: int | None,
    doc_id: str,
    ordinals: Collection[int] | None = None,
) -> list[Chunk]:
    """Return the chunks of a document, or those of these numbers, in reading order, whoever may
    read it."""
    named: dict[str, Any] = {"scope_id": scope_id, "doc_id": doc_id}
    if ordinals is None:
        rows = _CHUNKS_OF.rows(connection, **named)
    else:
        rows = _SOME_CHUNKS_OF.rows(connection, **named, ordinals=list(ordinals))
    return [Chunk(*row) for row in rows]


def marks_of(connection: Connection, document: int) -> list[DocumentMark]:
    """Return the marks of a document, sorted by their place."""
    query = select(marks.c.start, marks.c.kind, marks.c.label).where(marks.c.document == document)
    rows = connection.execute(query.order_by(marks.c.start, marks.c.is_heading))
    return [DocumentMark(**row._mapping) for row in rows]


def current_state(connection: Connection) -> CatalogState:
    (row,) = _STATE.rows(connection)
    return CatalogState(*row)


def stored_document(row: RowMapping) -> StoredDocument:
    """Return the document of a row of INFO, without its text."""
    fields: dict[str, Any] = {name: row[name] for name in INFO.selected_columns.keys()}  # noqa: SIM118
    fields["metadata"] = json.loads(fields["metadata"])
    fields["pinned"] = bool(fields["pinned"])
    fields["num_tokens"] = int(fields["num_tokens"])
    fields |= {name: groups_of(fields[name]) for name in ("readers", "writers")}
    return StoredDocument(**fields)


_CHANGES_AT_A_TIME = 256


def all_vectors(
    connection: Connection, space: EmbeddingSpace, batch: int
) -> Iterator[tuple[Scope, npt.NDArray[np.int64], Vectors]]:
    """Yield all vectors of an embedding space: (scope, chunk ids `[n]`, vectors `[n, dim]`)."""
    query = (
        select(scopes.c.tenant, scopes.c.collection, vectors.c.chunk_id, vectors.c.vector)
        .join_from(vectors, spaces, vectors.c.space_id == spaces.c.space_id)
        .join(chunks, chunks.c.chunk_id == vectors.c.chunk_id)
        .join(documents, documents.c.document == chunks.c.document)
        .join(scopes, scopes.c.scope_id == documents.c.scope_id)
        .where(spaces.c.name == space.name, spaces.c.revision == space.revision)
        .where(spaces.c.dim == space.dim, vectors.c.chunk_id > bindparam("last"))
        .order_by(vectors.c.chunk_id)
        .limit(batch)
    )
    last = 0
    while found := connection.execute(query, {"last": last}).all():
        last = found[-1].chunk_id
        by_scope: dict[tuple[str, str], list[tuple[int, bytes]]] = defaultdict(list)
        for tenant, collection, chunk_id, vector in found:
            by_scope[tenant, collection].append((chunk_id, vector))
        for names, pairs in by_scope.items():
            ids = np.array([chunk_id for chunk_id, _ in pairs], dtype=np.int64)
            blob = b"".join(vector for _, vector in pairs)
            rows = np.frombuffer(blob, dtype="<f4").reshape(len(pairs), space.dim)
            yield Scope(*names), ids, rows


def changes_since(
    read: Connection, since: CatalogState, space: EmbeddingSpace
) -> tuple[CatalogState, list[IndexChange]] | None:
    """See Catalog.changes_since. Vectors of chunks that are gone again are left out."""
    query = select(changes).where(changes.c.generation >= since.generation)
    rows = read.execute(query.order_by(changes.c.generation).limit(_CHANGES_AT_A_TIME)).all()
    if not rows or (rows[0].generation, rows[0].token) != (since.generation, since.token):
        return None
    added = [chunk_id for row in rows[1:] for chunk_id in row.added]
    stored = select(vectors.c.chunk_id, vectors.c.vector).where(among(vectors.c.chunk_id, added))
    found = {i: np.frombuffer(blob, dtype="<f4") for i, blob in read.execute(stored)}
    followed: list[IndexChange] = []
    for row in rows[1:]:
        ids = [chunk_id for chunk_id in row.added if chunk_id in found]
        new = np.array([found[i] for i in ids], dtype=np.float32).reshape(len(ids), space.dim)
        scope = Scope(row.tenant, row.collection)
        followed.append(IndexChange(scope, list(row.removed), ids, new))
    return CatalogState(rows[-1].generation, rows[-1].token), followed
