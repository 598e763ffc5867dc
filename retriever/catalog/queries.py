"""The catalog's SQL queries. The caller holds a transaction on the given connection."""

from __future__ import annotations

import json
import secrets
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from retriever.catalog.catalog_records import CatalogState
from retriever.chunking import ChunkSpan
from retriever.documents import Chunk, Document, DocumentInfo, canonical_metadata
from retriever.embedders.base import EmbeddingSpace, Vectors
from retriever.index.full_text import ChunkWords, FullText
from retriever.marks import Mark
from retriever.scope import Scope
from retriever.sql.connection import Connection, Row

INFO = """
    SELECT doc_id, revision, created, updated, num_chars, title, metadata, pinned,
           (SELECT count(*) FROM chunks WHERE chunks.document = documents.document) AS num_chunks,
           (SELECT coalesce(sum(tokens), 0) FROM chunks WHERE chunks.document = documents.document)
               AS num_tokens
    FROM documents
"""
# The last mark at or before a character of a document: a heading, or a page, slide or sheet.
_MARK = """
    (SELECT label FROM marks WHERE marks.document = {document} AND is_heading = {is_heading}
     AND start <= {start} ORDER BY start DESC LIMIT 1)
"""


def _place(document: str, start: str) -> str:
    """SQL of the columns `page` and `heading` of a character."""
    page = _MARK.format(document=document, is_heading=0, start=start)
    heading = _MARK.format(document=document, is_heading=1, start=start)
    return f"{page} AS page, {heading} AS heading"


_MARKED = """
    INSERT INTO marks VALUES (?, ?, ?, ?, ?) ON CONFLICT (document, is_heading, start)
    DO UPDATE SET kind = excluded.kind, label = excluded.label
"""
CHUNK = f"""
    SELECT chunk_id, doc_id, ordinal, chunks.text AS text, title, char_start, char_end, tokens,
           revision, {_place("chunks.document", "char_start")}
    FROM chunks JOIN documents USING (document)
"""
PLACE = (
    f"SELECT {_place('documents.document', '?')} FROM documents WHERE scope_id = ? AND doc_id = ?"
)


@dataclass(frozen=True)
class CarriedOver:
    """What a document keeps when a new revision replaces it.

    Attributes:
        created: time of its first revision, in Unix seconds.
        pinned: whether the user pinned it.
    """

    created: float
    pinned: bool = False


def insert(
    write: Connection,
    scope_id: int,
    document: Document,
    *,
    revision: str,
    kept: CarriedOver,
    spans: Sequence[ChunkSpan],
    vectors: Vectors,
    space_id: int,
    words: FullText,
) -> int:
    """Store a new document with its chunks, vectors and index words; returns its number."""
    inserted = write.execute(
        "INSERT INTO documents (scope_id, doc_id, revision, space_id, created, updated, "
        "num_chars, pinned, title, metadata, text) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "RETURNING document",
        (
            scope_id,
            document.doc_id,
            revision,
            space_id,
            kept.created,
            time.time(),
            len(document.text),
            int(kept.pinned),
            document.title,
            canonical_metadata(document.metadata),
            document.text,
        ),
    ).fetchone()
    number = int(inserted["document"])
    write.executemany(
        _MARKED,
        [(number, int(m.kind == "heading"), m.start, m.kind, m.label) for m in document.marks],
    )
    indexed: list[ChunkWords] = []
    for ordinal, (span, vector) in enumerate(zip(spans, vectors, strict=True)):
        text = document.text[span.start : span.end]
        inserted = write.execute(
            "INSERT INTO chunks (document, ordinal, char_start, char_end, tokens, text) "
            "VALUES (?, ?, ?, ?, ?, ?) RETURNING chunk_id",
            (number, ordinal, span.start, span.end, span.tokens, text),
        ).fetchone()
        chunk_id = int(inserted["chunk_id"])
        indexed.append((chunk_id, document.title, text))
        blob = np.ascontiguousarray(vector, dtype="<f4").tobytes()
        write.execute("INSERT INTO vectors VALUES (?, ?, ?)", (chunk_id, space_id, blob))
    words.add(write, scope_id, indexed)
    return number


def remove(
    write: Connection, scope_id: int, documents: Sequence[int], words: FullText
) -> list[int]:
    """Remove documents by number, with everything stored for them; returns their chunk ids."""
    query = (
        "SELECT chunk_id, title, chunks.text FROM chunks JOIN documents USING (document) "
        "WHERE document"
    )
    rows = [tuple(row) for row in rows_where_in(write, query, documents)]
    words.remove(write, scope_id, rows)
    change_where_in(write, "DELETE FROM documents WHERE document", documents)
    return sorted(chunk_id for chunk_id, *_ in rows)


def find_scope(connection: Connection, scope: Scope) -> int | None:
    """The number of a scope, or None if it has no documents."""
    query = "SELECT scope_id FROM scopes WHERE tenant = ? AND collection = ?"
    row = connection.execute(query, (scope.tenant, scope.collection)).fetchone()
    return None if row is None else int(row["scope_id"])


def make_scope(write: Connection, scope: Scope) -> int:
    """The number of a scope, which is created if it does not exist."""
    if (found := find_scope(write, scope)) is not None:
        return found
    values = (scope.tenant, scope.collection)
    insert = "INSERT INTO scopes (tenant, collection) VALUES (?, ?) RETURNING scope_id"
    return int(write.execute(insert, values).fetchone()["scope_id"])


def drop_if_empty(write: Connection, scope_id: int, words: FullText) -> None:
    """Remove a scope without documents, so that not even the tenant's name stays."""
    query = "SELECT 1 FROM documents WHERE scope_id = ?"
    if write.execute(query, (scope_id,)).fetchone() is None:
        words.drop(write, scope_id)
        write.execute("DELETE FROM scopes WHERE scope_id = ?", (scope_id,))


def chunks_of(connection: Connection, scope_id: int | None, doc_id: str) -> list[Chunk]:
    query = CHUNK + "WHERE scope_id = ? AND doc_id = ? ORDER BY ordinal"
    return [Chunk(**row) for row in connection.execute(query, (scope_id, doc_id))]


def marks_of(connection: Connection, scope_id: int | None, doc_id: str) -> tuple[Mark, ...]:
    query = (
        "SELECT start, kind, label FROM marks JOIN documents USING (document) "
        "WHERE scope_id = ? AND doc_id = ? ORDER BY start, is_heading"
    )
    return tuple(Mark(**row) for row in connection.execute(query, (scope_id, doc_id)))


def rows_where_in(
    connection: Connection,
    query: str,
    values: Collection[str] | Collection[int],
    *before: object,
) -> list[Row]:
    """Run `query IN values` with a single parameter for all values.

    Args:
        connection: an open connection.
        query: SQL up to the word IN.
        values: any number of values.
        before: the query's own parameters, which come first.
    """
    if not values:
        return []
    among = connection.in_texts if isinstance(next(iter(values)), str) else connection.in_numbers
    return connection.execute(f"{query} {among}", (*before, connection.listed(values))).fetchall()


def change_where_in(
    write: Connection,
    statement: str,
    values: Collection[str] | Collection[int],
    *before: object,
) -> None:
    """Run an UPDATE or DELETE up to `WHERE column`, for these values."""
    if values:
        among = write.in_texts if isinstance(next(iter(values)), str) else write.in_numbers
        write.execute(f"{statement} {among}", (*before, write.listed(values)))


def space_id(write: Connection, space: EmbeddingSpace) -> int:
    """The number of an embedding space, which is created if it does not exist."""
    values = astuple(space)
    insert = "INSERT INTO spaces (name, revision, dim) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
    write.execute(insert, values)
    query = "SELECT space_id FROM spaces WHERE name = ? AND revision = ? AND dim = ?"
    return int(write.execute(query, values).fetchone()["space_id"])


def vectors(
    connection: Connection, space: EmbeddingSpace, batch: int
) -> Iterator[tuple[Scope, npt.NDArray[np.int64], Vectors]]:
    """All vectors of an embedding space: (scope, chunk ids `[n]`, vectors `[n, dim]`)."""
    query = (
        "SELECT tenant, collection, chunk_id, vector "
        "FROM vectors JOIN spaces USING (space_id) JOIN chunks USING (chunk_id) "
        "JOIN documents USING (document) JOIN scopes USING (scope_id) "
        "WHERE name = ? AND spaces.revision = ? AND dim = ? AND chunk_id > ? "
        "ORDER BY chunk_id LIMIT ?"
    )
    last = 0
    while found := connection.execute(query, (*astuple(space), last, batch)).fetchall():
        last = found[-1]["chunk_id"]
        by_scope: dict[tuple[str, str], list[tuple[int, bytes]]] = defaultdict(list)
        for tenant, collection, chunk_id, vector in found:
            by_scope[tenant, collection].append((chunk_id, vector))
        for names, pairs in by_scope.items():
            ids = np.array([chunk_id for chunk_id, _ in pairs], dtype=np.int64)
            blob = b"".join(vector for _, vector in pairs)
            rows = np.frombuffer(blob, dtype="<f4").reshape(len(pairs), space.dim)
            yield Scope(*names), ids, rows


def state(connection: Connection) -> CatalogState:
    return CatalogState(**connection.execute("SELECT generation, token FROM state").fetchone())


def advance(write: Connection) -> CatalogState:
    """Count a change; returns the new state."""
    token = secrets.token_hex(16)
    write.execute("UPDATE state SET generation = generation + 1, token = ?", (token,))
    return state(write)


def info(row: Row) -> DocumentInfo:
    fields = dict(row)
    fields["metadata"] = json.loads(fields["metadata"])
    fields["pinned"] = bool(fields["pinned"])
    fields["num_tokens"] = int(fields["num_tokens"])
    return DocumentInfo(**fields)
