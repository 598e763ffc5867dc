"""A retriever that only stores: gateways search its catalog, and follow what it did."""

from __future__ import annotations

from retriever import ChunkSettings, Embedder, Retriever, Scope, VectorIndex
from retriever.catalog.catalog import Catalog
from retriever.documents import CatalogState, IngestResult
from retriever.embedders import Vectors, space_of
from retriever.index.vector_search import VectorSearch
from retriever.index_mirror import IndexMirror
from retriever.sql.database import Database


def storing_retriever(
    database: Database,
    embedder: Embedder,
    chunking: ChunkSettings,
    *,
    index: VectorSearch | None = None,
) -> Retriever:
    """Return a retriever for a catalog that others search; an `index` in its database gets the
    vectors of what is stored."""
    catalog, held = Catalog(database), VectorIndex() if index is None else index
    mirror = _OwnChanges(catalog, held, embedder, None)
    mirror.index_in_database = index
    return Retriever(catalog, held, embedder, chunking, mirror=mirror)


class _OwnChanges(IndexMirror):
    """Follows nobody, and holds nothing that others could search."""

    index_in_database: VectorSearch | None = None

    def start(self) -> str | None:
        if self.index_in_database is not None:
            self.index_in_database.reset(space_of(self._embedder).dim)
        return None

    @property
    def current(self) -> bool:
        return True

    def catch_up(self) -> None:
        pass

    def apply(self, done: IngestResult, vectors: Vectors, scope: Scope) -> None:
        if self.index_in_database is not None and done.status != "unchanged":
            ids = [chunk.chunk_id for chunk in done.chunks]
            self.index_in_database.replace(done.removed_chunk_ids, ids, vectors, scope=scope)

    def record(self, state: CatalogState) -> None:
        pass

    def save(self) -> None:
        pass
