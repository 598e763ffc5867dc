"""Documents, their chunks and vectors: the source of truth. Knows no embedder, index or model.

Every document is there whole, with all chunks and vectors of one revision, or not at all.
Usable from any number of threads; reads go on while a write is under way (see database.py).
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from retriever.chunker import Span
from retriever.database import Database
from retriever.documents import (
    Chunk,
    DocFilter,
    Document,
    DocumentInfo,
    DocumentPage,
    StoredDocument,
    canonical_metadata,
)
from retriever.embedders.base import EmbeddingSpace, Vectors
from retriever.filters import conditions

_INFO = """
    SELECT doc_id, revision, created, updated, num_chars, title, metadata,
           (SELECT count(*) FROM chunks WHERE chunks.doc_id = documents.doc_id) AS num_chunks,
           (SELECT total(tokens) FROM chunks WHERE chunks.doc_id = documents.doc_id) AS num_tokens
    FROM documents
"""
_CHUNK = """
    SELECT chunk_id, chunks.doc_id AS doc_id, ordinal, chunks.text AS text, title,
           char_start, char_end, tokens, revision
    FROM chunks JOIN documents ON documents.doc_id = chunks.doc_id
"""


@dataclass(frozen=True)
class CatalogState:
    """Equal states mean equal content; the generation rises by one with each change."""

    generation: int
    token: str


@dataclass(frozen=True)
class Counts:
    """Sizes of the corpus; tokens are those of the rendered chunks."""

    documents: int
    chunks: int
    tokens: int


@dataclass(frozen=True)
class Upsert:
    """What an upsert did, and the state it left; `chunks` are those of the document now."""

    status: Literal["created", "updated", "unchanged"]
    chunks: list[Chunk]
    removed_chunk_ids: list[int]
    state: CatalogState


class Catalog:
    """An SQLite file, opened by start()."""

    def __init__(self, path: str | Path) -> None:
        self._database = Database(Path(path))

    def start(self) -> None:
        """Raises CatalogError, CatalogUnsupported."""
        self._database.start()

    def close(self) -> None:
        self._database.close()

    def upsert(
        self,
        document: Document,
        revision: str,
        spans: Sequence[Span],
        vectors: Vectors,
        space: EmbeddingSpace,
    ) -> Upsert:
        """Store a document with its chunks and their vectors [len(spans), space.dim].

        The same revision again changes nothing; another one takes the old one's place.
        """
        if vectors.shape != (len(spans), space.dim):
            raise ValueError(f"{len(spans)} chunks but vectors of shape {vectors.shape}")
        with self._database.write() as write:
            old = write.execute(
                "SELECT revision, created FROM documents WHERE doc_id = ?", (document.doc_id,)
            ).fetchone()
            if old is not None and old["revision"] == revision:
                chunks = _chunks_of(write, document.doc_id)
                return Upsert("unchanged", chunks, [], _state(write))
            removed = _remove(write, [document.doc_id])
            created = time.time() if old is None else old["created"]
            _insert(write, document, revision, created, spans, vectors, _space_id(write, space))
            return Upsert(
                "created" if old is None else "updated",
                _chunks_of(write, document.doc_id),
                removed,
                _advance(write),
            )

    def delete(self, doc_ids: Collection[str]) -> tuple[list[int], CatalogState]:
        """Remove documents as one step; unknown ids are ignored. Returns the removed chunk ids."""
        with self._database.write() as write:
            known = _json_in(write, "SELECT doc_id FROM documents WHERE doc_id", doc_ids)
            if not known:
                return [], _state(write)
            return _remove(write, [row["doc_id"] for row in known]), _advance(write)

    def get(self, doc_id: str) -> StoredDocument | None:
        with self._database.read() as read:
            row = read.execute(_INFO + "WHERE doc_id = ?", (doc_id,)).fetchone()
            if row is None:
                return None
            text = read.execute("SELECT text FROM documents WHERE doc_id = ?", (doc_id,))
            info = _info(row)
            document = Document(doc_id, text.fetchone()["text"], info.title, info.metadata)
            return StoredDocument(document, info)

    def page(
        self, limit: int = 100, cursor: str | None = None, doc_filter: DocFilter | None = None
    ) -> DocumentPage:
        """Documents by doc_id after `cursor`. Raises InvalidQuery for an unusable filter."""
        where, values = conditions(doc_filter)
        query = f"{_INFO} WHERE doc_id > ? AND {where} ORDER BY doc_id LIMIT ?"
        with self._database.read() as read:
            rows = read.execute(query, (cursor or "", *values, limit + 1)).fetchall()
        infos = [_info(row) for row in rows[:limit]]
        return DocumentPage(infos, infos[-1].doc_id if len(rows) > limit else None)

    def revision(self, doc_id: str) -> str | None:
        """The stored revision of a document, None if there is none."""
        with self._database.read() as read:
            row = read.execute("SELECT revision FROM documents WHERE doc_id = ?", (doc_id,))
            found = row.fetchone()
        return None if found is None else str(found["revision"])

    def chunks(self, chunk_ids: Sequence[int]) -> list[Chunk]:
        """The chunks in the order asked for; ids that are gone are left out."""
        with self._database.read() as read:
            rows = _json_in(read, _CHUNK + "WHERE chunk_id", chunk_ids)
        found = {row["chunk_id"]: Chunk(**row) for row in rows}
        return [found[chunk_id] for chunk_id in chunk_ids if chunk_id in found]

    def chunks_of(self, doc_id: str) -> list[Chunk]:
        """All chunks of a document in reading order."""
        with self._database.read() as read:
            return _chunks_of(read, doc_id)

    def chunk_ids(self, doc_filter: DocFilter) -> list[int]:
        """Ids of all chunks of the documents that match. Raises InvalidQuery."""
        where, values = conditions(doc_filter)
        query = (
            "SELECT chunk_id FROM chunks WHERE doc_id IN "
            f"(SELECT doc_id FROM documents WHERE {where})"
        )
        with self._database.read() as read:
            return [row["chunk_id"] for row in read.execute(query, values)]

    def vectors(
        self, space: EmbeddingSpace, batch: int = 4096
    ) -> Iterator[tuple[npt.NDArray[np.int64], Vectors]]:
        """All vectors of a space as (ids [n], vectors [n, dim]), of one snapshot, by id."""
        query = (
            "SELECT chunk_id, vector FROM vectors JOIN spaces USING (space_id) "
            "WHERE name = ? AND revision = ? AND dim = ? ORDER BY chunk_id"
        )
        with self._database.read() as read:
            rows = read.execute(query, astuple(space))
            while found := rows.fetchmany(batch):
                ids = np.array([row["chunk_id"] for row in found], dtype=np.int64)
                blob = b"".join(row["vector"] for row in found)
                yield ids, np.frombuffer(blob, dtype="<f4").reshape(len(found), space.dim)

    def spaces(self) -> list[EmbeddingSpace]:
        """The spaces in which documents were embedded; one in normal operation."""
        query = (
            "SELECT name, revision, dim FROM spaces "
            "WHERE space_id IN (SELECT DISTINCT space_id FROM documents) ORDER BY space_id"
        )
        with self._database.read() as read:
            return [EmbeddingSpace(**row) for row in read.execute(query)]

    def state(self) -> CatalogState:
        with self._database.read() as read:
            return _state(read)

    def counts(self) -> Counts:
        query = (
            "SELECT (SELECT count(*) FROM documents), count(*), coalesce(sum(tokens), 0) "
            "FROM chunks"
        )
        with self._database.read() as read:
            return Counts(*read.execute(query).fetchone())


def _insert(
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


def _remove(write: sqlite3.Connection, doc_ids: Sequence[str]) -> list[int]:
    rows = _json_in(write, "SELECT chunk_id FROM chunks WHERE doc_id", doc_ids)
    _json_in(write, "DELETE FROM documents WHERE doc_id", doc_ids)
    return sorted(row["chunk_id"] for row in rows)


def _chunks_of(connection: sqlite3.Connection, doc_id: str) -> list[Chunk]:
    query = _CHUNK + "WHERE chunks.doc_id = ? ORDER BY ordinal"
    return [Chunk(**row) for row in connection.execute(query, (doc_id,))]


def _json_in(
    connection: sqlite3.Connection, query: str, values: Collection[str] | Collection[int]
) -> list[sqlite3.Row]:
    """`query IN values` with one parameter, however many values there are."""
    found = connection.execute(
        f"{query} IN (SELECT value FROM json_each(?))", (json.dumps(list(values)),)
    )
    return found.fetchall()


def _space_id(write: sqlite3.Connection, space: EmbeddingSpace) -> int:
    values = astuple(space)
    write.execute("INSERT OR IGNORE INTO spaces (name, revision, dim) VALUES (?, ?, ?)", values)
    query = "SELECT space_id FROM spaces WHERE name = ? AND revision = ? AND dim = ?"
    return int(write.execute(query, values).fetchone()["space_id"])


def _state(connection: sqlite3.Connection) -> CatalogState:
    return CatalogState(**connection.execute("SELECT generation, token FROM state").fetchone())


def _advance(write: sqlite3.Connection) -> CatalogState:
    token = secrets.token_hex(16)
    write.execute("UPDATE state SET generation = generation + 1, token = ?", (token,))
    return _state(write)


def _info(row: sqlite3.Row) -> DocumentInfo:
    fields = dict(row)
    fields["metadata"] = json.loads(fields["metadata"])
    fields["num_tokens"] = int(fields["num_tokens"])
    return DocumentInfo(**fields)
