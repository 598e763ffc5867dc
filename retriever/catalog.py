"""Documents, their chunks and vectors: the source of truth. Knows no embedder, index or model.

Every document is there whole, with all chunks and vectors of one revision, or not at all.
Usable from any number of threads; reads go on while a write is under way (see database.py).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from retriever import rows
from retriever.chunker import Span
from retriever.database import Database
from retriever.documents import (
    Chunk,
    DocFilter,
    Document,
    DocumentPage,
    StoredDocument,
)
from retriever.embedders.base import EmbeddingSpace, Vectors
from retriever.filters import conditions
from retriever.rows import CatalogState


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
                chunks = rows.chunks_of(write, document.doc_id)
                return Upsert("unchanged", chunks, [], rows.state(write))
            removed = rows.remove(write, [document.doc_id])
            created = time.time() if old is None else old["created"]
            space_id = rows.space_id(write, space)
            rows.insert(write, document, revision, created, spans, vectors, space_id)
            return Upsert(
                "created" if old is None else "updated",
                rows.chunks_of(write, document.doc_id),
                removed,
                rows.advance(write),
            )

    def delete(self, doc_ids: Collection[str]) -> tuple[list[int], CatalogState]:
        """Remove documents as one step; unknown ids are ignored. Returns the removed chunk ids."""
        with self._database.write() as write:
            known = rows.json_in(write, "SELECT doc_id FROM documents WHERE doc_id", doc_ids)
            if not known:
                return [], rows.state(write)
            return rows.remove(write, [row["doc_id"] for row in known]), rows.advance(write)

    def get(self, doc_id: str) -> StoredDocument | None:
        with self._database.read() as read:
            row = read.execute(rows.INFO + "WHERE doc_id = ?", (doc_id,)).fetchone()
            if row is None:
                return None
            text = read.execute("SELECT text FROM documents WHERE doc_id = ?", (doc_id,))
            info = rows.info(row)
            document = Document(doc_id, text.fetchone()["text"], info.title, info.metadata)
            return StoredDocument(document, info)

    def page(
        self, limit: int = 100, cursor: str | None = None, doc_filter: DocFilter | None = None
    ) -> DocumentPage:
        """Documents by doc_id after `cursor`. Raises InvalidQuery for an unusable filter."""
        where, values = conditions(doc_filter)
        query = f"{rows.INFO} WHERE doc_id > ? AND {where} ORDER BY doc_id LIMIT ?"
        with self._database.read() as read:
            found = read.execute(query, (cursor or "", *values, limit + 1)).fetchall()
        infos = [rows.info(row) for row in found[:limit]]
        return DocumentPage(infos, infos[-1].doc_id if len(found) > limit else None)

    def revision(self, doc_id: str) -> str | None:
        """The stored revision of a document, None if there is none."""
        with self._database.read() as read:
            row = read.execute("SELECT revision FROM documents WHERE doc_id = ?", (doc_id,))
            found = row.fetchone()
        return None if found is None else str(found["revision"])

    def chunks(self, chunk_ids: Sequence[int]) -> list[Chunk]:
        """The chunks in the order asked for; ids that are gone are left out."""
        with self._database.read() as read:
            selected = rows.json_in(read, rows.CHUNK + "WHERE chunk_id", chunk_ids)
        found = {row["chunk_id"]: Chunk(**row) for row in selected}
        return [found[chunk_id] for chunk_id in chunk_ids if chunk_id in found]

    def chunks_of(self, doc_id: str) -> list[Chunk]:
        """All chunks of a document in reading order."""
        with self._database.read() as read:
            return rows.chunks_of(read, doc_id)

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
            stored = read.execute(query, astuple(space))
            while found := stored.fetchmany(batch):
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
            return rows.state(read)

    def counts(self) -> Counts:
        query = (
            "SELECT (SELECT count(*) FROM documents), count(*), coalesce(sum(tokens), 0) "
            "FROM chunks"
        )
        with self._database.read() as read:
            return Counts(*read.execute(query).fetchone())
