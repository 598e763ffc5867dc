"""Keeps the vector index equal to the catalog: loads, rebuilds and saves it."""

from __future__ import annotations

import logging
from pathlib import Path

from kvstitch.retriever.catalog.catalog import Catalog
from kvstitch.retriever.documents import CatalogState, IngestResult
from kvstitch.retriever.embedders import Embedder, Vectors, space_of
from kvstitch.retriever.errors import EmbedderMismatch, IndexFileError, IndexMissing
from kvstitch.retriever.index.vector_search import VectorSearch
from kvstitch.retriever.scope import Scope

logger = logging.getLogger(__name__)


class IndexMirror:
    """Remembers which state of the catalog the index holds. The caller must hold a lock."""

    def __init__(
        self, catalog: Catalog, index: VectorSearch, embedder: Embedder, directory: Path | None
    ) -> None:
        self._catalog = catalog
        self._index = index
        self.embedder = embedder
        self._directory = directory
        self._state: CatalogState | None = None

    def start(self) -> str | None:
        """Load the saved index if it mirrors the catalog, else rebuild it."""
        reason = self._load()
        if reason is not None:
            self.rebuild()
        return reason

    @property
    def current(self) -> bool:
        """Whether the index holds what the catalog holds at this moment."""
        return self._state == self._catalog.state()

    def catch_up(self) -> None:
        """Apply what other processes have changed; rebuild the index if that is not known."""
        while True:
            since = self._state and self._catalog.changes_since(
                self._state, space_of(self.embedder)
            )
            if not since:
                logger.warning("the catalog changed without this index; rebuilding it")
                self.rebuild()
                return
            state, changes = since
            for change in changes:
                self._index.replace(change.removed, change.ids, change.vectors, scope=change.scope)
            self._state = state
            if not changes:
                return

    def apply(self, done: IngestResult, vectors: Vectors, scope: Scope) -> None:
        """Follow a document that was stored here, with its chunks' vectors `[chunks, dim]`."""
        if self._catalog.shared:
            self.catch_up()
            return
        if done.status != "unchanged":
            ids = [chunk.chunk_id for chunk in done.chunks]
            self._index.replace(done.removed_chunk_ids, ids, vectors, scope=scope)
        assert done.state is not None
        self.record(done.state)

    def record(self, state: CatalogState) -> None:
        """Record that the index mirrors `state`; rebuild it if a change was missed."""
        if self._state is None or state.generation > self._state.generation + 1:
            logger.warning("the catalog changed without this index; rebuilding it")
            self.rebuild()
        self._state = state

    def save(self) -> None:
        """Write the index, so that the next start need not rebuild it."""
        if self._directory is not None and self._state is not None:
            space, state = space_of(self.embedder), self._state
            self._index.save(self._directory, space, state.generation, state.token)

    def _load(self) -> str | None:
        """Load the saved index; returns why it cannot be used, or None."""
        if self._directory is None:
            return "the index is not saved"
        try:
            manifest = self._index.load(self._directory, space_of(self.embedder))
        except IndexMissing as error:
            return str(error)
        except (IndexFileError, EmbedderMismatch) as error:
            logger.warning("rebuilding the index from the catalog: %s", error)
            return str(error)
        saved = CatalogState(manifest.generation, manifest.token)
        known = self._catalog.changes_since(saved, space_of(self.embedder))
        if saved != self._catalog.state() and known is None:
            return "the saved index mirrors another state of the catalog"
        self._state = saved
        if known is not None:
            self.catch_up()
        return None

    def rebuild(self) -> None:
        """Make the index anew of what the catalog holds."""
        space = space_of(self.embedder)
        state = self._catalog.state()
        self._index.reset(space.dim)
        for scope, ids, vectors in self._catalog.vectors(space):
            self._index.add(ids.tolist(), vectors, scope=scope)
        self._index.complete()
        self._state = state
        logger.info("rebuilt the index from the catalog: %d vectors", len(self._index))
