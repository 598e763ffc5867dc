"""The catalog: documents, their chunks and vectors. It is the source of truth of a corpus.

A document is stored completely, with all chunks and vectors of one revision, or not at all.
Any number of threads may use the catalog; reads go on while a write is under way (`database.py`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from retriever.catalog import change_log, queries
from retriever.catalog.catalog_records import (
    CatalogState,
    CorpusCounts,
    IndexChange,
    UpsertResult,
)
from retriever.catalog.companion_table import CompanionTable
from retriever.catalog.database import Database
from retriever.catalog.queries import CarriedOver
from retriever.catalog.sqlite_database import SqliteDatabase
from retriever.chunking import ChunkSpan
from retriever.documents import (
    Chunk,
    DocFilter,
    Document,
    DocumentPage,
    StoredDocument,
)
from retriever.embedders.base import EmbeddingSpace, Vectors
from retriever.errors import InvalidQuery, InvalidVectors
from retriever.marks import Place
from retriever.scope import DEFAULT_SCOPE, Scope
from retriever.sql.connection import Connection

DOCUMENT_NUMBERS = "SELECT document, doc_id FROM documents WHERE scope_id = ? AND doc_id"


class Catalog:
    """Documents, chunks and vectors in a database, opened by `start`.

    Args:
        database: where they are; a path: an SQLite file.

    Attributes:
        companions: which other chunks a chunk's KV is computed behind.
    """

    def __init__(self, database: Database | str | Path) -> None:
        if isinstance(database, str | Path):
            database = SqliteDatabase(Path(database))
        self._database = database
        self._words = database.words
        self.companions = CompanionTable(database)

    @property
    def shared(self) -> bool:
        """Whether other processes change it, too."""
        return self._database.shared

    def start(self) -> None:
        """Open the file, creating or upgrading its schema.

        Raises:
            CatalogError: it cannot be opened.
            CatalogUnsupported: its schema is of another version than this code reads.
        """
        self._database.start()

    def close(self) -> None:
        self._database.close()

    def upsert(
        self,
        document: Document,
        revision: str,
        spans: Sequence[ChunkSpan],
        vectors: Vectors,
        space: EmbeddingSpace,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> UpsertResult:
        """Store a document with its chunks and their vectors.

        The same revision again changes nothing. A new revision replaces the old one.

        Args:
            document: the document.
            revision: hash of its content and of the chunking parameters.
            spans: its chunks.
            vectors: one vector per chunk, `[len(spans), space.dim]`.
            space: the embedding space of the vectors.
            scope: the tenant's collection.

        Raises:
            InvalidVectors: `vectors` has another shape.
            CatalogError: the database failed.
        """
        if vectors.shape != (len(spans), space.dim):
            raise InvalidVectors(f"{len(spans)} chunks but vectors of shape {vectors.shape}")
        with self._database.write() as write:
            scope_id = queries.make_scope(write, scope)
            old = write.execute(
                "SELECT document, revision, created, pinned FROM documents "
                "WHERE scope_id = ? AND doc_id = ?",
                (scope_id, document.doc_id),
            ).fetchone()
            if old is not None and old["revision"] == revision:
                chunks = queries.chunks_of(write, scope_id, document.doc_id)
                return UpsertResult("unchanged", chunks, [], queries.state(write))
            removed = (
                []
                if old is None
                else queries.remove(write, scope_id, [old["document"]], self._words)
            )
            kept = (
                CarriedOver(time.time())
                if old is None
                else CarriedOver(old["created"], bool(old["pinned"]))
            )
            space_id = queries.space_id(write, space)
            number = queries.insert(
                write,
                scope_id,
                document,
                revision=revision,
                kept=kept,
                spans=spans,
                vectors=vectors,
                space_id=space_id,
                words=self._words,
            )
            self._database.name(write, number, document)
            chunks = queries.chunks_of(write, scope_id, document.doc_id)
            state = self._advance(write, scope, removed, [chunk.chunk_id for chunk in chunks])
            return UpsertResult("created" if old is None else "updated", chunks, removed, state)

    def delete(
        self, doc_ids: Collection[str], *, scope: Scope = DEFAULT_SCOPE
    ) -> tuple[list[int], CatalogState]:
        """Remove documents in one transaction; unknown ids are ignored.

        Returns:
            The ids of the removed chunks, and the catalog's state after the removal.
        """
        with self._database.write() as write:
            scope_id = queries.find_scope(write, scope)
            known = queries.rows_where_in(write, DOCUMENT_NUMBERS, doc_ids, scope_id)
            if scope_id is None or not known:
                return [], queries.state(write)
            numbers = [row["document"] for row in known]
            removed = queries.remove(write, scope_id, numbers, self._words)
            queries.drop_if_empty(write, scope_id, self._words)
            return removed, self._advance(write, scope, removed, [])

    def set_pinned(
        self, doc_ids: Collection[str], pinned: bool, *, scope: Scope = DEFAULT_SCOPE
    ) -> list[str]:
        """Pin or unpin documents; returns those of the ids that exist."""
        with self._database.write() as write:
            scope_id = queries.find_scope(write, scope)
            known = queries.rows_where_in(write, DOCUMENT_NUMBERS, doc_ids, scope_id)
            numbers = [row["document"] for row in known]
            queries.change_where_in(
                write, "UPDATE documents SET pinned = ? WHERE document", numbers, int(pinned)
            )
            return sorted(row["doc_id"] for row in known)

    def get(self, doc_id: str, *, scope: Scope = DEFAULT_SCOPE) -> StoredDocument | None:
        with self._database.read() as read:
            key = (queries.find_scope(read, scope), doc_id)
            found = read.execute(queries.INFO + "WHERE scope_id = ? AND doc_id = ?", key).fetchone()
            if found is None:
                return None
            query = "SELECT text FROM documents WHERE scope_id = ? AND doc_id = ?"
            text = read.execute(query, key).fetchone()["text"]
            info = queries.info(found)
            marks = queries.marks_of(read, key[0], doc_id)
            return StoredDocument(Document(doc_id, text, info.title, info.metadata, marks), info)

    def marks_at(self, doc_id: str, start: int, *, scope: Scope = DEFAULT_SCOPE) -> Place:
        """Page and heading of a character of a document; of none if it does not exist."""
        with self._database.read() as read:
            key = (start, start, queries.find_scope(read, scope), doc_id)
            found = read.execute(queries.PLACE, key).fetchone()
        return Place() if found is None else Place(**found)

    def page(
        self,
        limit: int = 100,
        cursor: str | None = None,
        doc_filter: DocFilter | None = None,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> DocumentPage:
        """Return one page of documents in the order of doc_id, without texts.

        Args:
            limit: documents per page.
            cursor: `next_cursor` of the previous page; None: the first page.
            doc_filter: only documents that pass it.
            scope: the tenant's collection.

        Raises:
            InvalidQuery: `limit` is below 1.
        """
        if limit < 1:
            raise InvalidQuery(f"limit must be at least 1, not {limit}")
        where, values = self._database.conditions(doc_filter)
        query = (
            f"{queries.INFO} WHERE scope_id = ? AND doc_id > ? AND {where} ORDER BY doc_id LIMIT ?"
        )
        with self._database.read() as read:
            key = (queries.find_scope(read, scope), cursor or "")
            found = read.execute(query, (*key, *values, limit + 1)).fetchall()
        infos = [queries.info(row) for row in found[:limit]]
        return DocumentPage(infos, infos[-1].doc_id if len(found) > limit else None)

    def revision(self, doc_id: str, *, scope: Scope = DEFAULT_SCOPE) -> str | None:
        """The stored revision of a document, or None if there is no such document."""
        query = "SELECT revision FROM documents WHERE scope_id = ? AND doc_id = ?"
        with self._database.read() as read:
            found = read.execute(query, (queries.find_scope(read, scope), doc_id)).fetchone()
        return None if found is None else str(found["revision"])

    def chunks(self, chunk_ids: Sequence[int]) -> list[Chunk]:
        """Chunks of any scope, in the order of the ids; ids that no longer exist are left out."""
        with self._database.read() as read:
            selected = queries.rows_where_in(read, queries.CHUNK + "WHERE chunk_id", chunk_ids)
        found = {row["chunk_id"]: Chunk(**row) for row in selected}
        return [found[chunk_id] for chunk_id in chunk_ids if chunk_id in found]

    def chunks_of(self, doc_id: str, *, scope: Scope = DEFAULT_SCOPE) -> list[Chunk]:
        """All chunks of a document in reading order."""
        with self._database.read() as read:
            return queries.chunks_of(read, queries.find_scope(read, scope), doc_id)

    def chunk_ids(self, doc_filter: DocFilter, *, scope: Scope = DEFAULT_SCOPE) -> list[int]:
        """Ids of all chunks of the documents that match the filter."""
        where, values = self._database.conditions(doc_filter)
        query = (
            "SELECT chunk_id FROM chunks WHERE document IN "
            f"(SELECT document FROM documents WHERE scope_id = ? AND {where})"
        )
        with self._database.read() as read:
            found = read.execute(query, (queries.find_scope(read, scope), *values))
            return [row["chunk_id"] for row in found]

    def search(
        self,
        query: str,
        k: int,
        allowed_ids: Collection[int] | None = None,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> list[tuple[int, float]]:
        """The `k` best (chunk_id, BM25 score) of a scope; best first, ties by id."""
        with self._database.read() as read:
            scope_id = queries.find_scope(read, scope)
            if scope_id is None:
                return []
            return self._words.search(read, scope_id, query, k, allowed_ids)

    def purge(self) -> None:
        """Make sure that the database's files hold nothing of removed documents, as far as this
        database can.

        Raises:
            CatalogError: reads under way did not end in time.
        """
        with self._database.write() as write:
            self._words.purge(write)
        self._database.scrub()

    def vectors(
        self, space: EmbeddingSpace, batch: int = 4096
    ) -> Iterator[tuple[Scope, npt.NDArray[np.int64], Vectors]]:
        """Read all vectors of an embedding space, from one snapshot, in batches.

        Yields:
            (scope, chunk ids `[n]`, vectors `[n, dim]`). A scope may come several times, each time
            with higher ids.
        """
        with self._database.read() as read:
            yield from queries.vectors(read, space, batch)

    def spaces(self) -> list[EmbeddingSpace]:
        """The embedding spaces of the stored documents; normally there is one."""
        query = (
            "SELECT name, revision, dim FROM spaces "
            "WHERE space_id IN (SELECT DISTINCT space_id FROM documents) ORDER BY space_id"
        )
        with self._database.read() as read:
            return [EmbeddingSpace(**row) for row in read.execute(query)]

    def state(self) -> CatalogState:
        """The current state; equal states mean equal content."""
        with self._database.read() as read:
            return queries.state(read)

    def changes_since(
        self, state: CatalogState, space: EmbeddingSpace
    ) -> tuple[CatalogState, list[IndexChange]] | None:
        """What changed after `state`: the next changes, and the state that they lead to.

        None are left when that state is `state`. Returns None if it is not known what changed:
        `state` is too old, or of another catalog, or this catalog keeps no log.
        """
        if not self._database.shared:
            return None
        with self._database.read() as read:
            return change_log.since(read, state, space)

    def _advance(
        self, write: Connection, scope: Scope, removed: Sequence[int], added: Sequence[int]
    ) -> CatalogState:
        state = queries.advance(write)
        if self._database.shared:
            change_log.add(write, state, scope, removed, added)
        return state

    def counts(self, *, scope: Scope | None = None) -> CorpusCounts:
        """Sizes of a scope, or of all tenants together if `scope` is None."""
        query = (
            "SELECT count(DISTINCT document), count(chunk_id), coalesce(sum(tokens), 0) "
            "FROM documents LEFT JOIN chunks USING (document)"
        )
        with self._database.read() as read:
            if scope is None:
                return CorpusCounts(*read.execute(query).fetchone())
            key = (queries.find_scope(read, scope),)
            return CorpusCounts(*read.execute(f"{query} WHERE scope_id = ?", key).fetchone())

    def pinned(self) -> list[tuple[Scope, str]]:
        """(scope, doc_id) of all pinned documents of all tenants."""
        query = (
            "SELECT tenant, collection, doc_id FROM documents JOIN scopes USING (scope_id) "
            "WHERE pinned = 1 ORDER BY tenant, collection, doc_id"
        )
        with self._database.read() as read:
            return [(Scope(tenant, name), d) for tenant, name, d in read.execute(query)]

    def collections(self, tenant: str) -> list[tuple[str, CorpusCounts]]:
        """A tenant's collections that have documents, with their sizes, sorted by name."""
        query = (
            "SELECT collection, count(DISTINCT document), count(chunk_id), "
            "coalesce(sum(tokens), 0) FROM scopes JOIN documents USING (scope_id) "
            "LEFT JOIN chunks USING (document) WHERE tenant = ? "
            "GROUP BY collection ORDER BY collection"
        )
        with self._database.read() as read:
            return [
                (name, CorpusCounts(*counts)) for name, *counts in read.execute(query, (tenant,))
            ]
