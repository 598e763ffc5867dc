"""The catalog's statements. The caller holds a transaction on the given connection."""

from __future__ import annotations

import json
import secrets
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, RowMapping, and_, bindparam, func, literal_column, select

from encryption.values import is_sealed_text
from retriever.catalog.catalog_records import CatalogState, IndexChange
from retriever.catalog.tables import (
    changes,
    chunks,
    documents,
    marks,
    scopes,
    spaces,
    state,
    vectors,
)
from retriever.chunking import ChunkSpan
from retriever.documents import Chunk, Document, DocumentInfo, Mark, canonical_metadata
from retriever.embedders.base import EmbeddingSpace, Vectors
from retriever.index.full_text import ChunkWords, FullText
from retriever.readers import View
from retriever.scope import Scope
from retriever.sealing import Sealing
from retriever.sql.expressions import Prepared, among

CHANGES_KEPT = 100_000  # an index that is further behind is rebuilt
_PRUNE_EVERY = 1000
_CHANGES_AT_A_TIME = 256


def _last_mark(document: Any, is_heading: int, start: Any) -> Any:
    """Select the last mark at or before a character: a heading, or a page, slide or sheet."""
    named = and_(
        marks.c.document == document,
        marks.c.is_heading == literal_column(str(is_heading)),
        marks.c.start <= start,
    )
    found = select(marks.c.label).where(named).order_by(marks.c.start.desc())
    return found.limit(literal_column("1")).scalar_subquery()


def _place(document: Any, start: Any) -> list[Any]:
    """Return the columns `page` and `heading` of a character."""
    return [_last_mark(document, 0, start).label("page"),
            _last_mark(document, 1, start).label("heading")]  # fmt: skip


# The columns are the fields of Chunk, in their order.
_CHUNK = select(
    chunks.c.chunk_id, documents.c.doc_id, chunks.c.ordinal, chunks.c.text, documents.c.title,
    chunks.c.char_start, chunks.c.char_end, chunks.c.tokens, documents.c.revision,
    *_place(chunks.c.document, chunks.c.char_start), documents.c.readers,
).join_from(chunks, documents)  # fmt: skip
_CHUNKS = Prepared(_CHUNK.where(among(chunks.c.chunk_id, "chunk_ids")))
_THE_DOCUMENT = and_(
    documents.c.scope_id == bindparam("scope_id"), documents.c.doc_id == bindparam("doc_id")
)
_CHUNKS_OF = Prepared(_CHUNK.where(_THE_DOCUMENT).order_by(chunks.c.ordinal))
_PLACE = Prepared(
    select(
        *_place(documents.c.document, bindparam("start")), *documents.c["readers", "revision"]
    ).where(_THE_DOCUMENT)
)
_METADATA = Prepared(
    select(*documents.c["doc_id", "metadata", "readers", "revision"]).where(
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
# The columns are fields of DocumentInfo.
INFO = select(
    documents.c.doc_id, documents.c.revision, documents.c.created, documents.c.updated,
    documents.c.num_chars, documents.c.title, documents.c.metadata, documents.c.pinned,
    documents.c.readers,
    _own_chunks.scalar_subquery().label("num_chunks"),
    _own_tokens.scalar_subquery().label("num_tokens"),
)  # fmt: skip


_WORDS = select(
    chunks.c.chunk_id, documents.c.title, chunks.c.text,
    *documents.c["doc_id", "revision"], chunks.c.ordinal,
).join_from(chunks, documents)  # fmt: skip


@dataclass(frozen=True)
class CarriedOver:
    """What a document keeps when a new revision replaces it.

    Attributes:
        created: Time of its first revision, in Unix seconds.
        pinned: Whether the user pinned it.
    """

    created: float
    pinned: bool = False


def insert(
    write: Connection,
    scope_id: int,
    document: Document,
    *,
    tenant: str,
    revision: str,
    kept: CarriedOver,
    spans: Sequence[ChunkSpan],
    embedded: Vectors,
    space_id: int,
    words: FullText,
) -> None:
    """Store a new document with its chunks, vectors and index words."""
    sealing, named = Sealing.of(write), (document.doc_id, revision)
    metadata = canonical_metadata(document.metadata)
    if sealing.on:  # a JSON text, because PostgreSQL's column `fields` is made of it
        metadata = json.dumps(sealing.sealed(tenant, metadata, "metadata", *named))
    row = {
        "scope_id": scope_id,
        "doc_id": document.doc_id,
        "revision": revision,
        "space_id": space_id,
        "created": kept.created,
        "updated": time.time(),
        "num_chars": len(document.text),
        "pinned": int(kept.pinned),
        "title": sealing.sealed(tenant, document.title, "title", *named),
        "metadata": metadata,
        "text": sealing.sealed(tenant, document.text, "text", *named),
        "readers": document.readers,
    }
    if write.dialect.name == "postgresql":
        # Folded here: what PostgreSQL folds depends on its locale.
        title = "" if sealing.on else document.title.casefold()
        row |= {"folded_id": document.doc_id.casefold(), "folded_title": title}
    number = write.scalar(documents.insert().returning(documents.c.document), row)
    # Of several marks at a place the last one counts.
    found = {(m.kind == "heading", m.start): m for m in document.marks}
    if found:
        write.execute(
            marks.insert(),
            [
                {"document": number, "is_heading": int(is_heading), "start": start,
                 "kind": mark.kind, "label": sealing.sealed(tenant, mark.label, "label", *named)}
                for (is_heading, start), mark in found.items()
            ],
        )  # fmt: skip
    if not spans:
        words.add(write, scope_id, [])  # a search asks for the scope's words, though it has none
        return
    pieces: list[dict[str, Any]] = [
        {"document": number, "ordinal": ordinal, "char_start": span.start, "char_end": span.end,
         "tokens": span.tokens, "text": document.text[span.start : span.end]}
        for ordinal, span in enumerate(spans)
    ]  # fmt: skip
    added = chunks.insert().returning(chunks.c.chunk_id, sort_by_parameter_order=True)
    sealed = [
        piece | {"text": sealing.sealed(tenant, piece["text"], "chunk", *named, piece["ordinal"])}
        for piece in pieces
    ]
    chunk_ids = write.scalars(added, sealed).all()
    rows = np.ascontiguousarray(embedded, dtype="<f4")
    write.execute(
        vectors.insert(),
        [
            {
                "chunk_id": chunk_id,
                "space_id": space_id,
                "vector": sealing.sealed_vector(tenant, row.tobytes(), chunk_id),
            }
            for chunk_id, row in zip(chunk_ids, rows, strict=True)
        ],
    )
    indexed: list[ChunkWords] = [
        (chunk_id, document.title, str(piece["text"]))
        for chunk_id, piece in zip(chunk_ids, pieces, strict=True)
    ]
    words.add(write, scope_id, indexed)


def remove(write: Connection, scope_id: int, numbers: Sequence[int], words: FullText) -> list[int]:
    """Remove documents by number, with everything stored for them; return their chunk ids."""
    rows = _words(write, write.execute(_WORDS.where(among(documents.c.document, numbers))))
    words.remove(write, scope_id, rows)
    write.execute(documents.delete().where(among(documents.c.document, numbers)))
    return sorted(chunk_id for chunk_id, *_ in rows)


def texts_of(connection: Connection, chunk_ids: Sequence[int]) -> list[ChunkWords]:
    """Return number, title and text of chunks."""
    found = connection.execute(_WORDS.where(among(chunks.c.chunk_id, chunk_ids)))
    return _words(connection, found)


def _words(connection: Connection, rows: Iterable[Any]) -> list[ChunkWords]:
    sealing = Sealing.of(connection)
    return [
        (row.chunk_id, opened_title(sealing, row.title, row.doc_id, row.revision),
         sealing.opened(row.text, "chunk", row.doc_id, row.revision, row.ordinal))
        for row in rows
    ]  # fmt: skip


def opened_title(sealing: Sealing, title: str, doc_id: str, revision: str) -> str:
    """Return the title of a document's row."""
    return sealing.opened(title, "title", doc_id, revision)


def opened_metadata(sealing: Sealing, stored: str, doc_id: str, revision: str) -> str:
    """Return the metadata of a document's row, as JSON of an object."""
    if not stored.startswith('"'):
        return stored
    return sealing.opened(json.loads(stored), "metadata", doc_id, revision)


def text_of(read: Connection, info: DocumentInfo, stored: str) -> str:
    """Return the text of a document's row."""
    return Sealing.of(read).opened(stored, "text", info.doc_id, info.revision)


def _opened_chunk(sealing: Sealing, row: tuple[Any, ...]) -> Chunk:
    """Return the chunk of a row of _CHUNK."""
    chunk = Chunk(*row)
    if not sealing.on and not is_sealed_text(chunk.text):
        return chunk
    named = chunk.doc_id, chunk.revision
    return replace(
        chunk,
        text=sealing.opened(chunk.text, "chunk", *named, chunk.ordinal),
        title=sealing.opened(chunk.title, "title", *named),
        page=None if chunk.page is None else sealing.opened(chunk.page, "label", *named),
        heading=None if chunk.heading is None else sealing.opened(chunk.heading, "label", *named),
    )


def is_scope(connection: Connection, scope_id: int) -> bool:
    """Return whether a scope is still there."""
    query = select(scopes.c.scope_id).where(scopes.c.scope_id == scope_id)
    return connection.execute(query).first() is not None


def metadata_of(
    connection: Connection, doc_ids: Collection[str], scope: Scope
) -> dict[str, dict[str, Any]]:
    """Return the metadata of documents by doc_id, without those that are not stored."""
    values = {"scope_id": find_scope(connection, scope), "doc_ids": list(doc_ids)}
    sealing = Sealing.of(connection)
    return {
        doc_id: json.loads(opened_metadata(sealing, text, doc_id, revision))
        for doc_id, text, readers, revision in _METADATA.rows(connection, **values)
        if scope.view.shows(readers)
    }


def find_scope(connection: Connection, scope: Scope) -> int | None:
    """Return the number of a scope, or None if it has no documents."""
    row = _SCOPE.row(connection, tenant=scope.tenant, collection=scope.collection)
    return None if row is None else int(row[0])


def make_scope(write: Connection, scope: Scope) -> int:
    """Return the number of a scope, which is created if it does not exist."""
    if (found := find_scope(write, scope)) is not None:
        return found
    values = {"tenant": scope.tenant, "collection": scope.collection}
    return int(write.execute(scopes.insert().returning(scopes.c.scope_id), values).scalar_one())


def document_numbers(
    write: Connection, scope_id: int | None, doc_ids: Collection[str], view: View
) -> dict[str, int]:
    """Return the numbers of those documents of a scope that a view shows, by their ids."""
    named = documents.c.scope_id == scope_id, among(documents.c.doc_id, doc_ids)
    query = select(*documents.c["doc_id", "document", "readers"]).where(*named)
    return {row.doc_id: row.document for row in write.execute(query) if view.shows(row.readers)}


def drop_if_empty(write: Connection, scope_id: int, words: FullText) -> None:
    """Remove a scope without documents, so that not even the tenant's name stays."""
    left = select(documents.c.document).where(documents.c.scope_id == scope_id).limit(1)
    if write.execute(left).first() is None:
        words.drop(write, scope_id)
        write.execute(scopes.delete().where(scopes.c.scope_id == scope_id))


def chunks_by_id(connection: Connection, chunk_ids: Collection[int]) -> dict[int, Chunk]:
    """Return the chunks of any scope that exist, by their ids."""
    if not chunk_ids:
        return {}
    sealing = Sealing.of(connection)
    rows = _CHUNKS.rows(connection, chunk_ids=chunk_ids)
    return {row[0]: _opened_chunk(sealing, row) for row in rows}


def chunks_of(connection: Connection, scope_id: int | None, doc_id: str) -> list[Chunk]:
    """Return the chunks of a document in reading order, whoever may read it."""
    sealing = Sealing.of(connection)
    rows = _CHUNKS_OF.rows(connection, scope_id=scope_id, doc_id=doc_id)
    return [_opened_chunk(sealing, row) for row in rows]


def place(
    connection: Connection, scope_id: int | None, doc_id: str, start: int
) -> tuple[Any, ...] | None:
    """Return page and heading of a character of a document, and its readers."""
    row = _PLACE.row(connection, scope_id=scope_id, doc_id=doc_id, start=start)
    if row is None:
        return None
    *labels, readers, revision = row
    sealing = Sealing.of(connection)
    opened = [x if x is None else sealing.opened(x, "label", doc_id, revision) for x in labels]
    return *opened, readers


def marks_of(connection: Connection, document: int, info: DocumentInfo) -> tuple[Mark, ...]:
    """Return the marks of a document, sorted by their place."""
    query = select(marks.c.start, marks.c.kind, marks.c.label).where(marks.c.document == document)
    sealing, named = Sealing.of(connection), (info.doc_id, info.revision)
    rows = connection.execute(query.order_by(marks.c.start, marks.c.is_heading))
    return tuple(
        Mark(row.start, row.kind, sealing.opened(row.label, "label", *named)) for row in rows
    )


def space_id(write: Connection, space: EmbeddingSpace) -> int:
    """Return the number of an embedding space, which is created if it does not exist."""
    query = select(spaces.c.space_id).where(
        spaces.c.name == space.name, spaces.c.revision == space.revision, spaces.c.dim == space.dim
    )
    found = write.scalar(query)
    if found is None:
        values = {"name": space.name, "revision": space.revision, "dim": space.dim}
        found = write.scalar(spaces.insert().returning(spaces.c.space_id), values)
    return int(found)


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
    last, sealing = 0, Sealing.of(connection)
    while found := connection.execute(query, {"last": last}).all():
        last = found[-1].chunk_id
        by_scope: dict[tuple[str, str], list[tuple[int, bytes]]] = defaultdict(list)
        for tenant, collection, chunk_id, stored in found:
            vector = sealing.opened_vector(stored, chunk_id)
            by_scope[tenant, collection].append((chunk_id, vector))
        for names, pairs in by_scope.items():
            ids = np.array([chunk_id for chunk_id, _ in pairs], dtype=np.int64)
            blob = b"".join(vector for _, vector in pairs)
            rows = np.frombuffer(blob, dtype="<f4").reshape(len(pairs), space.dim)
            yield Scope(*names), ids, rows


def current_state(connection: Connection) -> CatalogState:
    """Return the state of the catalog."""
    (row,) = _STATE.rows(connection)
    return CatalogState(*row)


def advance(
    write: Connection, scope: Scope, removed: Sequence[int], added: Sequence[int]
) -> CatalogState:
    """Count a change, and log it where other processes follow it; return the new state.

    Generations are given out in the order of commits, because each change locks the state's row.
    """
    token = secrets.token_hex(16)
    write.execute(state.update().values(generation=state.c.generation + 1, token=token))
    new = current_state(write)
    if write.dialect.name == "postgresql":
        row = asdict(new) | {"tenant": scope.tenant, "collection": scope.collection,
                             "removed": list(removed), "added": list(added)}  # fmt: skip
        write.execute(changes.insert(), row)
        if new.generation % _PRUNE_EVERY == 0:
            old = changes.c.generation < new.generation - CHANGES_KEPT
            write.execute(changes.delete().where(old))
    return new


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
    sealing = Sealing.of(read)
    found = {
        i: np.frombuffer(sealing.opened_vector(blob, i), dtype="<f4")
        for i, blob in read.execute(stored)
    }
    followed: list[IndexChange] = []
    for row in rows[1:]:
        ids = [chunk_id for chunk_id in row.added if chunk_id in found]
        new = np.array([found[i] for i in ids], dtype=np.float32).reshape(len(ids), space.dim)
        scope = Scope(row.tenant, row.collection)
        followed.append(IndexChange(scope, list(row.removed), ids, new))
    return CatalogState(rows[-1].generation, rows[-1].token), followed


def info(row: RowMapping, sealing: Sealing) -> DocumentInfo:
    """Return the document of a row of INFO."""
    fields: dict[str, Any] = {name: row[name] for name in INFO.selected_columns.keys()}  # noqa: SIM118
    named = row["doc_id"], row["revision"]
    fields["title"] = opened_title(sealing, row["title"], *named)
    fields["metadata"] = json.loads(opened_metadata(sealing, row["metadata"], *named))
    fields["pinned"] = bool(fields["pinned"])
    fields["num_tokens"] = int(fields["num_tokens"])
    return DocumentInfo(**fields)
