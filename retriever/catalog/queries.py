"""The catalog's SQL queries. The caller holds a transaction on the given connection."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from retriever.catalog.catalog_records import CatalogState
from retriever.chunking.chunker import ChunkSpan
from retriever.documents import Chunk, Document, DocumentInfo, canonical_metadata
from retriever.embedders.base import EmbeddingSpace, Vectors
from retriever.marks import Mark
from retriever.scope import Scope
from retriever.search import bm25

INFO = """
    SELECT doc_id, revision, created, updated, num_chars, title, metadata, pinned,
           (SELECT count(*) FROM chunks WHERE chunks.document = documents.document) AS num_chunks,
           (SELECT total(tokens) FROM chunks WHERE chunks.document = documents.document)
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
    write: sqlite3.Connection,
    scope_id: int,
    document: Document,
    *,
    revision: str,
    kept: CarriedOver,
    spans: Sequence[ChunkSpan],
    vectors: Vectors,
    space_id: int,
) -> None:
    """Store a new document with its chunks, vectors and index words."""
    inserted = write.execute(
        "INSERT INTO documents (scope_id, doc_id, revision, space_id, created, updated, "
        "num_chars, pinned, title, metadata, text) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            scope_id,
            document.doc_id,
            revision,
            space_id,
            kept.created,
            time.time(),
            len(document.text),
            kept.pinned,
            document.title,
            canonical_metadata(document.metadata),
            document.text,
        ),
    )
    number = inserted.lastrowid
    write.executemany(
        "INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?)",
        [(number, m.kind == "heading", m.start, m.kind, m.label) for m in document.marks],
    )
    words: list[bm25.ChunkWords] = []
    for ordinal, (span, vector) in enumerate(zip(spans, vectors, strict=True)):
        text = document.text[span.start : span.end]
        inserted = write.execute(
            "INSERT INTO chunks (document, ordinal, char_start, char_end, tokens, text) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (number, ordinal, span.start, span.end, span.tokens, text),
        )
        words.append((int(inserted.lastrowid or 0), document.title, text))
        blob = np.ascontiguousarray(vector, dtype="<f4").tobytes()
        write.execute("INSERT INTO vectors VALUES (?, ?, ?)", (inserted.lastrowid, space_id, blob))
    bm25.add(write, scope_id, words)


def remove(write: sqlite3.Connection, scope_id: int, documents: Sequence[int]) -> list[int]:
    """Remove documents by number, with everything stored for them; returns their chunk ids."""
    query = (
        "SELECT chunk_id, title, chunks.text FROM chunks JOIN documents USING (document) "
        "WHERE document"
    )
    rows = [tuple(row) for row in rows_where_in(write, query, documents)]
    bm25.remove(write, scope_id, rows)
    rows_where_in(write, "DELETE FROM documents WHERE document", documents)
    return sorted(chunk_id for chunk_id, *_ in rows)


def find_scope(connection: sqlite3.Connection, scope: Scope) -> int | None:
    """The number of a scope, or None if it has no documents."""
    query = "SELECT scope_id FROM scopes WHERE tenant = ? AND collection = ?"
    row = connection.execute(query, (scope.tenant, scope.collection)).fetchone()
    return None if row is None else int(row["scope_id"])


def make_scope(write: sqlite3.Connection, scope: Scope) -> int:
    """The number of a scope, which is created if it does not exist."""
    if (found := find_scope(write, scope)) is not None:
        return found
    values = (scope.tenant, scope.collection)
    made = write.execute("INSERT INTO scopes (tenant, collection) VALUES (?, ?)", values)
    return int(made.lastrowid or 0)


def drop_if_empty(write: sqlite3.Connection, scope_id: int) -> None:
    """Remove a scope without documents, so that not even the tenant's name stays."""
    query = "SELECT 1 FROM documents WHERE scope_id = ?"
    if write.execute(query, (scope_id,)).fetchone() is None:
        bm25.drop(write, scope_id)
        write.execute("DELETE FROM scopes WHERE scope_id = ?", (scope_id,))


def chunks_of(connection: sqlite3.Connection, scope_id: int | None, doc_id: str) -> list[Chunk]:
    query = CHUNK + "WHERE scope_id = ? AND doc_id = ? ORDER BY ordinal"
    return [Chunk(**row) for row in connection.execute(query, (scope_id, doc_id))]


def marks_of(connection: sqlite3.Connection, scope_id: int | None, doc_id: str) -> tuple[Mark, ...]:
    query = (
        "SELECT start, kind, label FROM marks JOIN documents USING (document) "
        "WHERE scope_id = ? AND doc_id = ? ORDER BY start, is_heading"
    )
    return tuple(Mark(**row) for row in connection.execute(query, (scope_id, doc_id)))


def rows_where_in(
    connection: sqlite3.Connection,
    query: str,
    values: Collection[str] | Collection[int],
    *before: object,
) -> list[sqlite3.Row]:
    """Run `query IN values` with a single parameter for all values.

    Args:
        connection: an open connection.
        query: SQL up to the word IN.
        values: any number of values.
        before: the query's own parameters, which come first.
    """
    found = connection.execute(
        f"{query} IN (SELECT value FROM json_each(?))", (*before, json.dumps(list(values)))
    )
    return found.fetchall()


def space_id(write: sqlite3.Connection, space: EmbeddingSpace) -> int:
    """The number of an embedding space, which is created if it does not exist."""
    values = astuple(space)
    write.execute("INSERT OR IGNORE INTO spaces (name, revision, dim) VALUES (?, ?, ?)", values)
    query = "SELECT space_id FROM spaces WHERE name = ? AND revision = ? AND dim = ?"
    return int(write.execute(query, values).fetchone()["space_id"])


def vectors(
    connection: sqlite3.Connection, space: EmbeddingSpace, batch: int
) -> Iterator[tuple[Scope, npt.NDArray[np.int64], Vectors]]:
    """All vectors of an embedding space: (scope, chunk ids `[n]`, vectors `[n, dim]`)."""
    query = (
        "SELECT tenant, collection, chunk_id, vector "
        "FROM vectors JOIN spaces USING (space_id) JOIN chunks USING (chunk_id) "
        "JOIN documents USING (document) JOIN scopes USING (scope_id) "
        "WHERE name = ? AND spaces.revision = ? AND dim = ? ORDER BY chunk_id"
    )
    stored = connection.execute(query, astuple(space))
    while found := stored.fetchmany(batch):
        by_scope: dict[tuple[str, str], list[tuple[int, bytes]]] = defaultdict(list)
        for tenant, collection, chunk_id, vector in found:
            by_scope[tenant, collection].append((chunk_id, vector))
        for names, pairs in by_scope.items():
            ids = np.array([chunk_id for chunk_id, _ in pairs], dtype=np.int64)
            blob = b"".join(vector for _, vector in pairs)
            rows = np.frombuffer(blob, dtype="<f4").reshape(len(pairs), space.dim)
            yield Scope(*names), ids, rows


def state(connection: sqlite3.Connection) -> CatalogState:
    return CatalogState(**connection.execute("SELECT generation, token FROM state").fetchone())


def advance(write: sqlite3.Connection) -> CatalogState:
    """Count a change; returns the new state."""
    token = secrets.token_hex(16)
    write.execute("UPDATE state SET generation = generation + 1, token = ?", (token,))
    return state(write)


def info(row: sqlite3.Row) -> DocumentInfo:
    fields = dict(row)
    fields["metadata"] = json.loads(fields["metadata"])
    fields["pinned"] = bool(fields["pinned"])
    fields["num_tokens"] = int(fields["num_tokens"])
    return DocumentInfo(**fields)
