"""The documents to tune on, and prompts over them as the service would build them.

Passages are found by the service's retriever and written by its prompt builder, so that what is
measured is what is served.

Copies a collection out of PostgreSQL into a catalog file, with the vectors that it has there.

Nothing is written to the database: tuning chooses prefix chunks, which a shared catalog would keep.
"""

from __future__ import annotations

import random
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from kvstitch.retriever import Chunk, Document, Retriever, Scope
from kvstitch.retriever.catalog.catalog import Catalog
from kvstitch.retriever.catalog.tables import catalog_database
from kvstitch.retriever.chunking import ChunkSpan
from kvstitch.retriever.embedders import EmbeddingSpace, Vectors
from kvstitch.retriever.errors import DatabaseError
from kvstitch.retriever.prefixes.prefix_choice import PrefixKind
from kvstitch.retriever.scope import joined_readers
from kvstitch.service.errors import InvalidRequest, InvalidSetting
from kvstitch.service.gateway.prompts.chunk_prefixes import prefix_rule
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.gateway.search.async_retriever import make_embedder
from kvstitch.service.messages.requests import ChunkTokens
from kvstitch.service.prompt import Turn
from kvstitch.service.settings import Settings
from kvstitch_tune.case import NEXT
from kvstitch_tune.prompts import Prompt

PAGE = 500
KINDS: tuple[PrefixKind, PrefixKind] = ("primer", "neighbours")
CATALOG = "catalog.db"


class Corpus:
    """Documents that can be searched, as one collection of the service."""

    def __init__(
        self,
        retriever: Retriever,
        prompts: PromptBuilder,
        settings: Settings,
        scope: Scope,
        *,
        max_context: int,
    ) -> None:
        self._retriever = retriever
        self._prompts = prompts
        self._settings = settings
        self._scope = scope
        self._max_context = max_context
        self._chosen: dict[tuple[PrefixKind, int], Sequence[Sequence[Sequence[int]]]] = {}

    def passages(self, count: int, rng: random.Random) -> list[Chunk]:
        """Up to `count` passages in random order, each of another document while there are some."""
        by_document = [
            self._retriever.catalog.chunks_of(doc, scope=self._scope) for doc in self._names()
        ]
        for chunks in by_document:
            rng.shuffle(chunks)
        rng.shuffle(by_document)
        found: list[Chunk] = []
        while len(found) < count and any(by_document):
            found += [chunks.pop() for chunks in by_document if chunks]
        return found[:count]

    def prompt(self, question: str, *, task: str) -> Prompt:
        """Return the prompt that the service would answer this question from."""
        mode, top_k = self._settings.retrieval, self._prompts.format.top_k
        ranked = self._retriever.search(question, top_k, scope=self._scope, mode=mode)
        passages = self._prompts.format.in_prompt_order(ranked)
        chunks = [passage.chunk for passage in passages]
        segments = [ChunkTokens(each.chunk_id, self._prompts.segment(each)) for each in chunks]
        asked = self._prompts.encode_question([Turn("user", question)])
        self._prompts.check_length(segments, asked, max_context=self._max_context - NEXT - 2)
        documents = tuple(tuple(document.ids) for document in segments)
        behind: dict[str, Sequence[Sequence[Sequence[Sequence[int]]]]] = {
            kind: [(), *(self._prefixes(kind, chunk) for chunk in chunks[1:])] for kind in KINDS
        }
        return Prompt(task, tuple(self._prompts.system), documents, tuple(asked), behind=behind)

    def _prefixes(self, kind: PrefixKind, chunk: Chunk) -> Sequence[Sequence[Sequence[int]]]:
        """Return what the service would compute this chunk behind, as token ids."""
        known = self._chosen.get((kind, chunk.chunk_id))
        if known is None:
            room = (self._max_context - self._prompts.format.chunk_tokens) // 2
            rule = prefix_rule(kind, self._settings)
            chosen = self._retriever.prefix_chunks.choose_all(
                [(chunk, room)], rule, scope=self._scope
            )
            found = chosen[chunk.chunk_id]
            known = [[self._prompts.segment(c) for c in prefix] for prefix in found]
            self._chosen[kind, chunk.chunk_id] = known
        return known

    @property
    def documents(self) -> int:
        return self._retriever.catalog.counts(scope=self._scope).documents

    def _names(self) -> Iterator[str]:
        return _names(self._retriever.catalog, self._scope)


@contextmanager
def of_documents(
    documents: list[Document],
    prompts: PromptBuilder,
    settings: Settings,
    *,
    max_context: int,
) -> Iterator[Corpus]:
    """A corpus of documents that are given."""
    with _folder() as folder, _started(folder, prompts, settings) as retriever:
        results = retriever.ingest(documents)
        if not any(result.chunks for result in results):
            why = next((str(r.error) for r in results if r.error), "there is no text in them")
            raise InvalidRequest(f"no document can be used: {why}", field="documents")
        yield Corpus(retriever, prompts, settings, Scope(), max_context=max_context)


@contextmanager
def of_collection(
    collection: str,
    prompts: PromptBuilder,
    settings: Settings,
    *,
    max_context: int,
) -> Iterator[Corpus]:
    """A collection of the service's data folder or database, also while the service runs.

    The catalog of a folder is copied, because an index has one owner; of a database only the
    collection is. The copy is gone at the end: a document that is deleted later must be nowhere.
    """
    if settings.database:
        from kvstitch_tune.corpus import copy_collection

        with _folder() as folder:
            copy_collection(settings.database, Scope(collection=collection), folder / CATALOG)
            yield from _collection(folder, collection, prompts, settings, max_context)
        return
    source = settings.data_dir / CATALOG
    if not source.is_file():
        raise InvalidRequest(f"{settings.data_dir} holds no documents", field="collection")
    with _folder() as folder:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as served,
            closing(sqlite3.connect(folder / CATALOG)) as copy,
        ):
            served.backup(copy)
        yield from _collection(folder, collection, prompts, settings, max_context)


def _collection(
    folder: Path, collection: str, prompts: PromptBuilder, settings: Settings, max_context: int
) -> Iterator[Corpus]:
    with _started(folder, prompts, settings) as retriever:
        scope = Scope(collection=collection)
        if not retriever.catalog.counts(scope=scope).chunks:
            there = retriever.catalog.collections("")
            known = ", ".join(one.collection for one in there) or "none"
            raise InvalidRequest(
                f"there is no collection {collection!r} with documents; there are: {known}",
                field="collection",
            )
        yield Corpus(retriever, prompts, settings, scope, max_context=max_context)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvstitch-tune-") as folder:
        yield Path(folder)


@contextmanager
def _started(folder: Path, prompts: PromptBuilder, settings: Settings) -> Iterator[Retriever]:
    retriever = Retriever.in_folder(folder, make_embedder(settings), prompts.chunking())
    retriever.start()
    try:
        yield retriever
    finally:
        retriever.close()


PAGE = 500


def copy_collection(url: str, scope: Scope, file: Path) -> None:
    """Make a catalog of this collection alone; an unknown one makes an empty catalog."""
    source, target = Catalog(catalog_database(url, connections=2)), Catalog(file)
    try:
        source.start()
        target.start()
        for space in source.spaces():
            _copy(source, target, scope, space)
    except DatabaseError as error:
        raise InvalidSetting(f"database (KVSTITCH_DATABASE): {error}") from error
    finally:
        target.close()
        source.close()


def _copy(source: Catalog, target: Catalog, scope: Scope, space: EmbeddingSpace) -> None:
    vectors: dict[int, Vectors] = {}
    for found, ids, rows in source.vectors(space):
        if found == scope:
            vectors |= zip(ids.tolist(), rows, strict=True)
    for doc_id in _names(source, scope):
        stored = source.get(doc_id, scope=scope)
        chunks = source.chunks_of(doc_id, scope=scope)
        if stored is None or not all(chunk.chunk_id in vectors for chunk in chunks):
            continue
        spans = [ChunkSpan(c.char_start, c.char_end, c.tokens, c.lead) for c in chunks]
        of_chunks = np.array([vectors[chunk.chunk_id] for chunk in chunks], dtype=np.float32)
        document = Document(
            doc_id, stored.text or "", stored.title, stored.metadata, tuple(stored.marks or ()),
            joined_readers(stored.readers),
        )  # fmt: skip
        rows = of_chunks.reshape(len(spans), space.dim)
        target.upsert(document, stored.revision, spans, rows, space, scope=scope)


def _names(source: Catalog, scope: Scope) -> Iterator[str]:
    cursor = None
    while True:
        page = source.page(PAGE, cursor, scope=scope)
        yield from (document.doc_id for document in page.documents)
        cursor = page.next_cursor
        if cursor is None:
            return
