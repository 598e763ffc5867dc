"""The catalog: documents, their chunks and vectors. It is the source of truth of a corpus.

A document is stored completely, with all chunks and vectors of one revision, or not at all.
Any number of threads may use the catalog; reads go on while a write is under way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, Connection, and_, func, select

from kvstitch.records.documents import Collection as StoredCollection
from kvstitch.records.documents import Document as StoredDocument
from kvstitch.records.documents import DocumentList
from kvstitch.retriever.analysis.analyser import AnalysedQuery, Term
from kvstitch.retriever.catalog import queries, storing
from kvstitch.retriever.catalog.filter_conditions import chunks_matching, conditions
from kvstitch.retriever.catalog.reading_groups import (
    SCOPES,
    SHOWN,
    WORDS,
    Remembered,
    of_readers,
    readable,
)
from kvstitch.retriever.catalog.storing import CarriedOver
from kvstitch.retriever.catalog.tables import catalog_database, chunks, documents, scopes, spaces
from kvstitch.retriever.chunking import ChunkSpan
from kvstitch.retriever.documents import (
    CatalogState,
    Chunk,
    DocFilter,
    Document,
    IndexChange,
    IngestResult,
)
from kvstitch.retriever.embedders import EmbeddingSpace, Vectors
from kvstitch.retriever.errors import DatabaseError, InvalidQuery, InvalidVectors
from kvstitch.retriever.index import bm25, postings
from kvstitch.retriever.index.full_text import FullText, Searched, WordHits
from kvstitch.retriever.scope import DEFAULT_SCOPE, EVERYTHING, Scope, View
from kvstitch.retriever.sql.database import Database
from kvstitch.retriever.sql.expressions import among

CHUNKS_RENEWED = 200  # at a time: some tenths of a second
_COUNTS = (
    func.count(documents.c.document.distinct()).label("documents"),
    func.count(chunks.c.chunk_id).label("chunks"),
    func.coalesce(func.sum(chunks.c.tokens), 0).label("tokens"),
)


class Catalog:
    """Documents, chunks and vectors in a database, opened by `start`: an SQLite file, or what
    `catalog_database` returns."""

    def __init__(self, database: Database | str | Path) -> None:
        if isinstance(database, str | Path):
            database = catalog_database(Path(database))
        self.database = database
        self._words: FullText = postings if database.shared else bm25
        # The chunks that a view of a scope shows (None: all), and in how many chunks words are: a
        # question's words are looked up in the stems of every language, and nearly all of them are
        # nowhere. That is a hundred look-ups for ten words, most of which were made before.
        self._shown: Remembered[tuple[int | None, View], list[int] | None] = Remembered(
            SHOWN, lambda found: 1 + len(found or ())
        )
        self._word_counts: Remembered[int, dict[str, int]] = Remembered(SCOPES)

    @property
    def shared(self) -> bool:
        """Whether other processes change it, too."""
        return self.database.shared

    def start(self) -> None:
        """Open the database, and create its tables or bring them up to date."""
        if not self.shared:
            bm25.require()
        self.database.start()

    def close(self) -> None:
        self.database.close()

    def upsert(
        self,
        document: Document,
        revision: str,
        spans: Sequence[ChunkSpan],
        vectors: Vectors,
        space: EmbeddingSpace,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> IngestResult:
        """Store a document with its chunks and their vectors, `[len(spans), space.dim]`.

        The same revision (a hash of its content and of the chunking parameters) of the same writers
        again changes nothing, and a new one replaces the old one. Raises DocumentHidden or
        DocumentKept (storing.replaced).
        """
        if vectors.shape != (len(spans), space.dim):
            raise InvalidVectors(f"{len(spans)} chunks but vectors of shape {vectors.shape}")
        with self.database.write() as write:
            scope_id = storing.make_scope(write, scope)
            old, writers = storing.replaced(write, scope_id, document, scope)
            if old is not None and (old.revision, old.writers) == (revision, writers):
                return storing.unchanged(write, scope_id, document.doc_id)
            removed: list[int] = []
            kept = CarriedOver(time.time(), writers=writers)
            if old is not None:
                removed = storing.remove(write, scope_id, [old.document], self._words)
                kept = CarriedOver(old.created, bool(old.pinned), writers)
            storing.insert(
                write, scope_id, document, revision=revision, kept=kept, spans=spans,
                embedded=vectors, space_id=storing.space_id(write, space), words=self._words,
            )  # fmt: skip
            stored = queries.chunks_of(write, scope_id, document.doc_id)
            state = storing.advance(write, scope, removed, [chunk.chunk_id for chunk in stored])
            status: Literal["created", "updated"] = "created" if old is None else "updated"
            return IngestResult(document.doc_id, status, stored, removed, state=state)

    def same(
        self, document: Document, revision: str, *, scope: Scope = DEFAULT_SCOPE
    ) -> IngestResult | None:
        """Return what `upsert` does of a document that is stored in this revision; None: it is
        not. Raises as `upsert`."""
        with self.database.write() as write:
            scope_id = queries.find_scope(write, scope)
            old, writers = storing.replaced(write, scope_id, document, scope)
            if old is None or (old.revision, old.writers) != (revision, writers):
                return None
            return storing.unchanged(write, scope_id, document.doc_id)

    def delete(
        self, doc_ids: Collection[str], *, scope: Scope = DEFAULT_SCOPE
    ) -> tuple[list[int], CatalogState]:
        """Remove documents in one transaction; ids that are unknown, hidden or kept are ignored.
        Returns the ids of the removed chunks, and the state after it."""
        with self.database.write() as write:
            scope_id = queries.find_scope(write, scope)
            known = queries.document_numbers(write, scope, doc_ids)
            if scope_id is None or not known:
                return [], queries.current_state(write)
            removed = storing.remove(write, scope_id, list(known.values()), self._words)
            storing.drop_if_empty(write, scope_id, self._words)
            return removed, storing.advance(write, scope, removed, [])

    def drop_tenant(self, tenant: str) -> tuple[int, int]:
        """Remove all collections of a tenant without reading anything of them; returns how many
        documents and chunks there were."""
        with self.database.write() as write:
            query = select(*scopes.c["scope_id", "collection"]).where(scopes.c.tenant == tenant)
            counted = [0, 0]
            for scope_id, collection in write.execute(query).all():
                of_scope = documents.c.scope_id == scope_id
                found = select(chunks.c.chunk_id).join(documents).where(of_scope)
                removed = list(write.scalars(found))
                self._words.drop(write, scope_id)
                counted[0] += write.execute(documents.delete().where(of_scope)).rowcount
                counted[1] += len(removed)
                write.execute(scopes.delete().where(scopes.c.scope_id == scope_id))
                storing.advance(write, Scope(tenant, collection), removed, [])
            return counted[0], counted[1]

    def set_pinned(
        self, doc_ids: Collection[str], pinned: bool, *, scope: Scope = DEFAULT_SCOPE
    ) -> list[str]:
        """Pin or unpin documents; return those of the ids that exist and may be changed."""
        with self.database.write() as write:
            known = queries.document_numbers(write, scope, doc_ids)
            change = documents.update().where(among(documents.c.document, known.values()))
            write.execute(change.values(pinned=int(pinned)))
            return sorted(known)

    def rename(self, doc_id: str, name: str, *, scope: Scope = DEFAULT_SCOPE) -> bool:
        """Give a document another id, under which it stays what it is; False if there is no such
        document, or one that is called so."""
        values = {"doc_id": name}
        if self.database.shared:
            values["folded_id"] = name.casefold()
        with self.database.write() as write:
            scope_id = queries.find_scope(write, scope)
            known = queries.document_numbers(write, scope, [doc_id])
            taken = write.execute(select(documents.c.document).where(_has_name(scope_id, name)))
            if not known or taken.first() is not None:
                return False
            named = documents.c.document == known[doc_id]
            write.execute(documents.update().where(named).values(values))
            return True

    def get(self, doc_id: str, *, scope: Scope = DEFAULT_SCOPE) -> StoredDocument | None:
        """Return a document with its text and marks, or None if there is no such document."""
        with self.database.read() as read:
            query = queries.INFO.add_columns(*documents.c["document", "text"])
            named = _has_name(queries.find_scope(read, scope), doc_id)
            found = read.execute(query.where(named)).mappings().one_or_none()
            if found is None or not scope.view.shows(found["readers"]):
                return None
            marks = queries.marks_of(read, found["document"])
        return replace(queries.stored_document(found), text=found["text"], marks=marks)

    def page(
        self,
        limit: int = 100,
        cursor: str | None = None,
        doc_filter: DocFilter | None = None,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> DocumentList:
        """Return one page of the documents that pass a filter, in the order of doc_id, without
        texts. `cursor` is `next_cursor` of the page before."""
        if limit < 1:
            raise InvalidQuery(f"limit must be at least 1, not {limit}")
        with self.database.read() as read:
            scope_id = queries.find_scope(read, scope)
            query = queries.INFO.where(
                documents.c.scope_id == scope_id,
                documents.c.doc_id > (cursor or ""),
                conditions(doc_filter, read.dialect.name),
                of_readers(readable(read, scope_id, scope.view)),
            )
            ordered = query.order_by(documents.c.doc_id).limit(limit + 1)
            found = read.execute(ordered).mappings().all()
        listed = [queries.stored_document(row) for row in found[:limit]]
        return DocumentList(
            documents=listed, next_cursor=listed[-1].doc_id if len(found) > limit else None
        )

    def metadata_of(
        self, doc_ids: Collection[str], *, scope: Scope = DEFAULT_SCOPE
    ) -> dict[str, dict[str, Any]]:
        """Return the metadata of documents by doc_id, without those that are not stored."""
        with self.database.read() as read:
            return queries.metadata_of(read, doc_ids, scope)

    def revision(self, doc_id: str, *, scope: Scope = DEFAULT_SCOPE) -> tuple[str, str] | None:
        """Return the stored revision of a document and its writers, or None if there is no such
        document."""
        with self.database.read() as read:
            named = _has_name(queries.find_scope(read, scope), doc_id)
            query = select(*documents.c["revision", "writers", "readers"]).where(named)
            found = read.execute(query).one_or_none()
        return (found[0], found[1]) if found and scope.view.shows(found.readers) else None

    def readers_of(
        self, doc_ids: Collection[str], *, scope: Scope = DEFAULT_SCOPE
    ) -> dict[str, str]:
        """Return the readers of those of these documents that are stored, whoever may read them."""
        with self.database.read() as read:
            of_scope = documents.c.scope_id == queries.find_scope(read, scope)
            query = select(*documents.c["doc_id", "readers"])
            found = read.execute(query.where(of_scope, among(documents.c.doc_id, doc_ids)))
            return {row.doc_id: row.readers for row in found}

    def kept(self, doc_ids: Collection[str], *, scope: Scope = DEFAULT_SCOPE) -> list[str]:
        """Return those of these documents that the scope's view shows and its pen may not change,
        sorted."""
        with self.database.read() as read:
            return sorted(queries.document_numbers(read, scope, doc_ids, changed=False))

    def chunks(self, chunk_ids: Sequence[int]) -> list[Chunk]:
        """Return chunks of any scope in the order of the ids, without those that do not exist,
        whoever may read them."""
        with self.database.read() as read:
            found = queries.chunks_by_id(read, chunk_ids)
        return [found[chunk_id] for chunk_id in chunk_ids if chunk_id in found]

    def chunks_of(
        self, doc_id: str, ordinals: Collection[int] | None = None, *, scope: Scope = DEFAULT_SCOPE
    ) -> list[Chunk]:
        """Return the chunks of a document, or those of these numbers, in reading order."""
        with self.database.read() as read:
            found = queries.chunks_of(read, queries.find_scope(read, scope), doc_id, ordinals)
        return [chunk for chunk in found if scope.view.shows(chunk.readers)]

    def chunk_ids(self, doc_filter: DocFilter, *, scope: Scope = DEFAULT_SCOPE) -> list[int]:
        """Return the ids of all chunks of the documents that match the filter."""
        with self.database.read() as read:
            scope_id = queries.find_scope(read, scope)
            return chunks_matching(read, scope_id, doc_filter, readable(read, scope_id, scope.view))

    def allowed_chunks(
        self, doc_filter: DocFilter | None, *, scope: Scope = DEFAULT_SCOPE
    ) -> list[int] | None:
        """Return the ids of the chunks that a search may find; None: all that there are."""
        if doc_filter is not None:
            return self.chunk_ids(doc_filter, scope=scope)
        if scope.view.groups is None:
            return None
        with self.database.read() as read:
            state, scope_id = queries.current_state(read), queries.find_scope(read, scope)
            if (known := self._shown.find((scope_id, scope.view), state)) is not None:
                return known[0]
            readers = readable(read, scope_id, scope.view)
            found = (
                None if readers is None else chunks_matching(read, scope_id, DocFilter(), readers)
            )
        self._shown.remember((scope_id, scope.view), state, found)
        return found

    def search(
        self,
        query: AnalysedQuery,
        k: int,
        allowed_ids: Collection[int] | None = None,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> WordHits:
        """Find the `k` chunks of a scope that have the query's words, and all that hold what is to
        be held exactly."""
        with self.database.read() as read:
            if (scope_id := queries.find_scope(read, scope)) is None:
                return WordHits([], [])
            words = Searched(read, scope_id, self._counts(read, scope_id), allowed_ids)
            ranked = self._words.search(words, query, k)
            exact: list[set[int]] = []
            for term in query.exact:
                found = (self._words.holding(words, spellings) for spellings in term.preferred)
                exact.append(next(filter(None, found), set()))
            return WordHits(ranked, exact, words.meant)

    def rarity(self, terms: Collection[Term], *, scope: Scope = DEFAULT_SCOPE) -> dict[Term, float]:
        """Return BM25's inverse document frequency of each word in a scope; nothing where it has no
        chunks, or their words are made anew."""
        with self.database.read() as read:
            if (scope_id := queries.find_scope(read, scope)) is None:
                return {}
            words = Searched(read, scope_id, self._counts(read, scope_id))
            chunks, found = self._words.frequencies(words, terms)
        holding = {term: max(found.get(s[0], 0) for s in term.spellings) for term in terms}
        return (
            {term: math.log(1 + (chunks - n + 0.5) / (n + 0.5)) for term, n in holding.items()}
            if chunks
            else {}
        )

    def _counts(self, read: Connection, scope_id: int) -> dict[str, int]:
        """Return what is known of a scope's words in this state; look-ups add to it."""
        if self.shared:  # another process that makes their words anew does not change the state
            return {}
        state = queries.current_state(read)
        if (known := self._word_counts.find(scope_id, state)) and len(known[0]) <= WORDS:
            return known[0]
        counts: dict[str, int] = {}
        self._word_counts.remember(scope_id, state, counts)
        return counts

    def words_outdated(self) -> bool:
        """Return whether chunks are found by words that another release's analyser has made."""
        with self.database.read() as read:
            return bool(self._words.outdated(read))

    def renew_words(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Have this release's analyser make the words of all chunks, until `stopped`; searches and
        changes go on."""
        with self.database.read() as read:
            outdated = self._words.outdated(read)
        for scope_id in outdated:
            while not stopped():
                # One transaction for some chunks: changes wait for no more than these.
                with self.database.write() as write:
                    if queries.is_scope(write, scope_id) and (
                        ids := self._words.next_outdated(write, scope_id, CHUNKS_RENEWED)
                    ):
                        self._words.rebuild(
                            write, scope_id, queries.words_of(write, chunks.c.chunk_id, ids)
                        )
                        continue
                    if queries.is_scope(write, scope_id):
                        self._words.finish(write, scope_id)
                break

    def purge(self) -> None:
        """Make sure that the files hold nothing of removed documents; raises DatabaseError if reads
        under way did not end in time."""
        with self.database.write() as write:
            self._words.purge(write)
        if not self.database.scrub():
            raise DatabaseError("the log of changes is being read, and was not emptied; try again")

    def vectors(
        self, space: EmbeddingSpace, batch: int = 4096
    ) -> Iterator[tuple[Scope, npt.NDArray[np.int64], Vectors]]:
        """Yield all vectors of an embedding space, from one snapshot: (scope, chunk ids `[n]`,
        vectors `[n, dim]`). A scope may come again, with higher ids."""
        with self.database.read() as read:
            yield from queries.all_vectors(read, space, batch)

    def spaces(self) -> list[EmbeddingSpace]:
        """Return the embedding spaces of the stored documents; normally there is one."""
        used = spaces.c.space_id.in_(select(documents.c.space_id))
        query = select(*spaces.c["name", "revision", "dim"]).where(used).order_by(spaces.c.space_id)
        with self.database.read() as read:
            return [EmbeddingSpace(*row) for row in read.execute(query)]

    def state(self) -> CatalogState:
        """Return the current state; equal states mean equal content."""
        with self.database.read() as read:
            return queries.current_state(read)

    def changes_since(
        self, state: CatalogState, space: EmbeddingSpace
    ) -> tuple[CatalogState, list[IndexChange]] | None:
        """Return the next changes after `state`, and the state that they lead to; None if it is not
        known what changed."""
        if not self.shared:
            return None
        with self.database.read() as read:
            return queries.changes_since(read, state, space)

    def counts(self, *, scope: Scope | None = None) -> StoredCollection:
        """Return the sizes of a scope, or of all tenants together (without a name) if None."""
        query = select(*_COUNTS).select_from(documents.outerjoin(chunks))
        with self.database.read() as read:
            if scope is not None:
                scope_id = queries.find_scope(read, scope)
                readers = readable(read, scope_id, scope.view)
                query = query.where(documents.c.scope_id == scope_id, of_readers(readers))
            name = "" if scope is None else scope.collection
            return StoredCollection(collection=name, **read.execute(query).one()._mapping)

    def newest_texts(self, limit: int) -> list[str]:
        """Return how the texts begin that were stored last, of all tenants: 1,000 characters."""
        query = select(func.substr(documents.c.text, 1, 1000))
        with self.database.read() as read:
            return [*read.scalars(query.order_by(documents.c.document.desc()).limit(limit))]

    def pinned(self) -> list[tuple[Scope, str]]:
        """Return (scope, doc_id) of all pinned documents of all tenants."""
        columns = (scopes.c.tenant, scopes.c.collection, documents.c.doc_id)
        query = select(*columns).join_from(documents, scopes).where(documents.c.pinned == 1)
        with self.database.read() as read:
            rows = read.execute(query.order_by(*columns))
            return [(Scope(tenant, name), doc_id) for tenant, name, doc_id in rows]

    def ages(self) -> list[tuple[Scope, str, float]]:
        """Return all documents that are not pinned, of all tenants, by their scopes: (scope,
        doc_id, when this revision was stored in Unix seconds)."""
        columns = (scopes.c.tenant, scopes.c.collection, documents.c.doc_id, documents.c.updated)
        query = select(*columns).join_from(documents, scopes).where(documents.c.pinned == 0)
        with self.database.read() as read:
            rows = read.execute(query.order_by(*columns[:3]))
            return [(Scope(tenant, name), doc_id, at) for tenant, name, doc_id, at in rows]

    def collections(self, tenant: str, view: View = EVERYTHING) -> list[StoredCollection]:
        """Return a tenant's collections in which a view shows documents, with the sizes of what it
        shows, sorted by name."""
        name = scopes.c.collection
        query = select(name, *_COUNTS).select_from(scopes.join(documents).outerjoin(chunks))
        query = query.where(scopes.c.tenant == tenant).group_by(name).order_by(name)
        found: list[StoredCollection] = []
        with self.database.read() as read:
            if view.groups is None:
                return [StoredCollection(**row._mapping) for row in read.execute(query)]
            own = select(*scopes.c["scope_id", "collection"]).where(scopes.c.tenant == tenant)
            for scope_id, _ in read.execute(own.order_by(name)).all():
                shown = of_readers(readable(read, scope_id, view))
                rows = read.execute(query.where(documents.c.scope_id == scope_id, shown))
                found += [StoredCollection(**row._mapping) for row in rows]
        return found


def _has_name(scope_id: int | None, doc_id: str) -> ColumnElement[bool]:
    return and_(documents.c.scope_id == scope_id, documents.c.doc_id == doc_id)
