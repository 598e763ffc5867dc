"""Ingest, search and delete, on top of catalog, vector index and embedder.

The catalog is the source of truth; the vector index mirrors it:

    ingest   split ── embed ──┬ catalog commit ── index replace ┬── results
    search          embed ────┼ filter ── index ── catalog ─────┼── passages
                              └ one writer, or many readers ────┘

All methods block; async callers run them in threads. Only one process at a time may own the index
of a catalog. A catalog that several processes share has an index in each of them, which follows the
others' changes: a search sees all that was committed before it began.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvstitch.retriever.analysis.analyser import analyse_query, question_of
from kvstitch.retriever.analysis.spelling import clean
from kvstitch.retriever.catalog.catalog import Catalog
from kvstitch.retriever.chunking import ChunkSettings
from kvstitch.retriever.documents import DocFilter, Document, IngestResult, Passage, SearchMode
from kvstitch.retriever.embedders import Embedder, FindEmbedder, Vectors, space_of
from kvstitch.retriever.errors import EmbedderMismatch, RetrieverError, Unreachable
from kvstitch.retriever.index.scope_index import BuildStopped, Stopped
from kvstitch.retriever.index.vector_index import EXACT_UP_TO, ReadWriteLock, VectorIndex
from kvstitch.retriever.index.vector_search import VectorSearch
from kvstitch.retriever.index_mirror import IndexMirror
from kvstitch.retriever.ingest import DocumentEmbedder, EmbeddedDocument, embed_documents
from kvstitch.retriever.prefixes.prefix_chunks import PrefixChunks
from kvstitch.retriever.relevance import evidence, relevance, weighty_words
from kvstitch.retriever.scope import DEFAULT_SCOPE, Scope
from kvstitch.retriever.search import CANDIDATES, MOST_OF_A_WORD, check_query, combine, exact_first
from kvstitch.retriever.sql.database import Database
from kvstitch.retriever.vector_renewal import VectorRenewal, forget_others

logger = logging.getLogger(__name__)


class QueryVector(NamedTuple):
    """A query as an embedder sees it, `[dim]`."""

    vector: Vectors
    made_by: Embedder


@dataclass(frozen=True)
class StartReport:
    vectors: int
    rebuilt: str | None


class Retriever:
    """Stores documents and searches them; any number of threads may use it."""

    def __init__(
        self,
        catalog: Catalog,
        index: VectorSearch,
        embedder: Embedder,
        chunking: ChunkSettings,
        *,
        index_dir: Path | None = None,
        mirror: IndexMirror | None = None,
    ) -> None:
        self.catalog = catalog
        self.index = index
        self.embedder = embedder  # that answers
        self.renewal: VectorRenewal | None = None  # for the one that is to answer next
        self.former: FindEmbedder = lambda space: None
        self.follows = False  # nobody named an embedder: that of the documents goes on to answer
        self.embedding = DocumentEmbedder(catalog, embedder, chunking)
        self._mirror = mirror or IndexMirror(catalog, index, embedder, index_dir)
        self.prefix_chunks = PrefixChunks(catalog, index)
        # Held during a commit and its index change, so that a search sees both or neither.
        self._consistency = ReadWriteLock()

    @classmethod
    def in_folder(
        cls,
        folder: Path,
        embedder: Embedder,
        chunking: ChunkSettings,
        *,
        exact_up_to: int = EXACT_UP_TO,
        database: Database | None = None,
        index: VectorSearch | None = None,
    ) -> Retriever:
        """A retriever with its files in a folder; the catalog may be in a `database` instead."""
        catalog = Catalog(database or folder / "catalog.db")
        if index is None:
            index = VectorIndex(exact_up_to=exact_up_to)
        return cls(catalog, index, embedder, chunking, index_dir=folder / "index")

    def start(self) -> StartReport:
        """Load the saved index if it mirrors the catalog, else rebuild it from the catalog. Over
        documents of another embedder that one answers until `rebuild_indexes` has embedded them,
        or for good (`follows`); raises EmbedderMismatch where it is not found, or others share the
        catalog."""
        self.embedder.start()
        self.catalog.start()
        space = space_of(self.embedder)
        forget_others(self.catalog.database, space)
        if others := [other for other in self.catalog.spaces() if other != space]:
            alone = len(others) == 1 and not self.catalog.shared
            if (former := self.former(others[0]) if alone else None) is None:
                raise EmbedderMismatch(
                    f"documents were embedded by {', '.join(map(str, others))}, the embedder is "
                    f"{space}; start with that embedder, or ingest the documents into an empty "
                    "folder. They are embedded anew in the background where the former embedder is "
                    "found, to answer meanwhile, and no database is shared"
                )
            if not self.follows:
                self.renewal = VectorRenewal(self.catalog.database, self.embedder)
            self._answer_with(former)
        self.catalog.purge()  # documents that the last process removed but did not purge
        with self._consistency.write():
            reason = self._mirror.start()
        return StartReport(len(self.index), reason)

    def take(self, embedder: Embedder) -> bool:
        """Have another embedder, which was started, answer; False: documents are there already."""
        with self._consistency.write():
            if empty := not self.catalog.spaces():
                self._answer_with(embedder)
                self._mirror.rebuild()
        return empty

    def _answer_with(self, embedder: Embedder) -> None:
        self.embedder = self.embedding.embedder = self._mirror.embedder = embedder

    def close(self) -> None:
        """Release everything. It saves nothing: call `save` first."""
        self.catalog.close()
        self.embedder.close()
        if self.renewal is not None:
            self.renewal.embedder.close()

    def ingest(
        self, documents: Iterable[Document], *, scope: Scope = DEFAULT_SCOPE
    ) -> list[IngestResult]:
        """Split, embed and store documents; one that fails does not affect the others."""
        items = (EmbeddedDocument(**vars(document), scope=scope) for document in documents)
        return [self.store(item) for item in self.embedding.embed(items)]

    def store(self, item: EmbeddedDocument) -> IngestResult:
        """The other half of an ingest: store a document that was embedded."""
        doc_id, scope = item.doc_id, item.scope
        try:
            if item.error is None and item.vectors is None:
                if (same := self.catalog.same(item, item.revision, scope=scope)) is not None:
                    return same
                list(self.embedding.embed([item]))  # it was removed meanwhile
            if item.error is not None:
                return IngestResult(doc_id, "failed", error=item.error)
            assert item.vectors is not None
            with self._consistency.write():
                space = space_of(self.embedder)
                if item.space not in (None, space):  # another embedder has begun to answer
                    item.vectors = embed_documents(self.embedder, item.texts())
                done = self.catalog.upsert(
                    item, item.revision, item.spans, item.vectors, space, scope=scope
                )
                self._mirror.apply(done, item.vectors, scope)
            return done
        except Unreachable:
            raise  # that is no fault of the document
        except RetrieverError as error:
            return IngestResult(doc_id, "failed", error=error)

    def search(
        self,
        query: str,
        top_k: int,
        doc_filter: DocFilter | None = None,
        *,
        scope: Scope = DEFAULT_SCOPE,
        mode: SearchMode = "dense",
        vector: QueryVector | None = None,
    ) -> list[Passage]:
        """Find the best passages of a scope, ties by chunk_id."""
        check_query(query, top_k, mode)
        if vector is None and mode != "sparse":
            vector = self.embed_query(query)
        if self.catalog.shared and not self._mirror.current:
            with self._consistency.write():
                self._mirror.catch_up()
        wanted = max(CANDIDATES, top_k) if mode == "hybrid" else top_k
        dense = sparse = None
        exact: Sequence[Collection[int]] = ()
        most = 0.0
        with self._consistency.read():
            allowed = self.catalog.allowed_chunks(doc_filter, scope=scope)
            if vector is not None:
                if vector.made_by is not self.embedder:
                    vector = self.embed_query(query)
                hits = self.index.search(vector.vector, wanted, allowed, scope=scope)
                # Rounding can make the cosine of equal vectors slightly larger than 1.
                dense = [(chunk_id, max(-1.0, min(1.0, score))) for chunk_id, score in hits]
            if mode != "dense":
                words = self.catalog.search(analyse_query(query), wanted, allowed, scope=scope)
                sparse, exact = words.ranked, words.exact
                if mode == "hybrid":
                    asked = [words.meant.get(word, word) for word in weighty_words(query)]
                    most = MOST_OF_A_WORD * sum(self.catalog.rarity(asked, scope=scope).values())
            fused = exact_first(combine(dense, sparse, most), exact, wanted)
            best = {hit.chunk_id: hit for hit in fused[:top_k]}
            found = [(chunk, best[chunk.chunk_id]) for chunk in self.catalog.chunks(list(best))]
        return [
            Passage(
                chunk, hit.score,
                dense_rank=hit.dense[0], dense_score=hit.dense[1],
                sparse_rank=hit.sparse[0], sparse_score=hit.sparse[1], exact=hit.exact,
            )
            for chunk, hit in found
            if scope.view.shows(chunk.readers)
        ]  # fmt: skip

    def relevance(
        self, query: str, passages: Sequence[Passage], *, scope: Scope = DEFAULT_SCOPE
    ) -> float | None:
        """Return how far passages that were found are about a query: from 0 to 1, below `FLOOR` not
        at all. None: nothing says, as while a scope's words are made anew."""
        if not passages:
            return None
        rarity = self.catalog.rarity(weighty_words(query), scope=scope)
        found = evidence(query, rarity, passages)
        return None if found is None else relevance(found, self.embedder.name)

    def embed_query(self, query: str) -> QueryVector:
        """Embed a query for `search`. Raises as `search`."""
        check_query(query)
        cleaned, embedder = clean(query), self.embedder
        asked = question_of(cleaned)
        prompt = embedder.prompts.query
        if asked is None:
            return QueryVector(embedder.embed([prompt + cleaned])[0][0], embedder)
        whole, question = embedder.embed([prompt + cleaned, prompt + asked])[0]
        both: Vectors = whole + question
        return QueryVector(both / np.linalg.norm(both), embedder)

    def delete(self, doc_ids: Collection[str], *, scope: Scope = DEFAULT_SCOPE) -> list[int]:
        """Remove documents; ids that are unknown, or hidden from the scope's view, are ignored.
        Returns the ids of the removed chunks."""
        with self._consistency.write():
            removed, state = self.catalog.delete(doc_ids, scope=scope)
            if self.catalog.shared:
                self._mirror.catch_up()
            else:
                self.index.remove(removed, scope=scope)
                self._mirror.record(state)
        return removed

    def save(self) -> None:
        """Write the index, so that the next start need not rebuild it."""
        with self._consistency.read():
            self._mirror.save()

    def indexes_overdue(self) -> bool:
        """Return whether there is something to do for `rebuild_indexes`."""
        return any((self.renewal, self.index.overdue(), self.catalog.words_outdated()))

    def rebuild_indexes(self, stopped: Stopped = lambda: False) -> bool:
        """Renew words and vectors, and give scopes whose vector index does not suit their size one
        that does. Raises EmbedderError."""
        self.catalog.renew_words(stopped)
        renewed = self._renew_vectors(stopped)
        overdue = self.index.overdue()
        try:
            for scope in overdue:
                self.index.rebuild(scope, stopped)
        except BuildStopped:
            return renewed
        return renewed or bool(overdue)

    def _renew_vectors(self, stopped: Stopped) -> bool:
        """Have the embedder that is to answer next do so, once it has embedded everything."""
        while (renewal := self.renewal) is not None and not stopped():
            try:
                if renewal.step():
                    continue
            except RetrieverError as error:
                renewal.failure = str(error)
                raise
            with self._consistency.write():
                if renewal.finish():
                    self.renewal = None
                    self._answer_with(renewal.embedder)
                    self._mirror.rebuild()
                    logger.info("%s answers from now on", space_of(self.embedder))
                    return True
        return False

    def purge(self) -> None:
        """Save, and make sure that no file holds anything of removed or replaced documents."""
        self.catalog.purge()
        self.save()
