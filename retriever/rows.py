"""The catalog's SQL on an open connection. Knows no transactions: whoever calls holds one."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from retriever.chunker import Span
from retriever.documents import Chunk, Document, DocumentInfo, canonical_metadata
from retriever.embedders.base import EmbeddingSpace, Vectors

INFO = """
    SELECT doc_id, revision, created, updated, num_chars, title, metadata,
           (SELECT count(*) FROM chunks WHERE chunks.doc_id = documents.doc_id) AS num_chunks,
           (SELECT total(tokens) FROM chunks WHERE chunks.doc_id = documents.doc_id) AS num_tokens
    FROM documents
"""
CHUNK = """
    SELECT chunk_id, chunks.doc_id AS doc_id, ordinal, chunks.text AS text, title,
           char_start, char_end, tokens, revision
    FROM chunks JOIN documents ON documents.doc_id = chunks.doc_id
"""


@dataclass(frozen=True)
class CatalogState:
    """Equal states mean equal content; the generation rises by one with each change."""

    generation: int
    token: str


def insert(
    write: sqlite3.Connection,
    document: Document,
    revision: str,
    created: float,
    spans: Sequence[Span],
    vectors: Vectors,
    space_id: int,
) -> None:
    metadata = canonical_metadata(document.metadata)
    write.execute(
        "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            document.doc_id,
            revision,
            space_id,
            created,
            time.time(),
            len(document.text),
            document.title,
            metadata,
            document.text,
        ),
    )
    for ordinal, (span, vector) in enumerate(zip(spans, vectors, strict=True)):
        inserted = write.execute(
            "INSERT INTO chunks (doc_id, ordinal, char_start, char_end, tokens, text) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (
                document.doc_id,
                ordinal,
                span.start,
                span.end,
                span.tokens,
                document.text[span.start : span.end],
            ),
        )
        blob = np.ascontiguousarray(vector, dtype="<f4").tobytes()
        write.execute("INSERT INTO vectors VALUES (?, ?, ?)", (inserted.lastrowid, space_id, blob))


def remove(write: sqlite3.Connection, doc_ids: Sequence[str]) -> list[int]:
    rows = json_in(write, "SELECT chunk_id FROM chunks WHERE doc_id", doc_ids)
    json_in(write, "DELETE FROM documents WHERE doc_id", doc_ids)
    return sorted(row["chunk_id"] for row in rows)


def chunks_of(connection: sqlite3.Connection, doc_id: str) -> list[Chunk]:
    query = CHUNK + "WHERE chunks.doc_id = ? ORDER BY ordinal"
    return [Chunk(**row) for row in connection.execute(query, (doc_id,))]


def json_in(
    connection: sqlite3.Connection, query: str, values: Collection[str] | Collection[int]
) -> list[sqlite3.Row]:
    """`query IN values` with one parameter, however many values there are."""
    found = connection.execute(
        f"{query} IN (SELECT value FROM json_each(?))", (json.dumps(list(values)),)
    )
    return found.fetchall()


def space_id(write: sqlite3.Connection, space: EmbeddingSpace) -> int:
    values = astuple(space)
    write.execute("INSERT OR IGNORE INTO spaces (name, revision, dim) VALUES (?, ?, ?)", values)
    query = "SELECT space_id FROM spaces WHERE name = ? AND revision = ? AND dim = ?"
    return int(write.execute(query, values).fetchone()["space_id"])


def state(connection: sqlite3.Connection) -> CatalogState:
    return CatalogState(**connection.execute("SELECT generation, token FROM state").fetchone())


def advance(write: sqlite3.Connection) -> CatalogState:
    token = secrets.token_hex(16)
    write.execute("UPDATE state SET generation = generation + 1, token = ?", (token,))
    return state(write)


def info(row: sqlite3.Row) -> DocumentInfo:
    fields = dict(row)
    fields["metadata"] = json.loads(fields["metadata"])
    fields["num_tokens"] = int(fields["num_tokens"])
    return DocumentInfo(**fields)
