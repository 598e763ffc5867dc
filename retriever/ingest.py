"""Turns documents into stored chunks and vectors.

Embedding is batched over documents; each document is stored in a transaction of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from retriever.catalog.catalog import Catalog
from retriever.catalog.catalog_records import UpsertResult
from retriever.chunking.chunker import ChunkSettings, ChunkSpan
from retriever.documents import Chunk, Document, document_revision, validate_document
from retriever.embedders.base import Embedder, Vectors
from retriever.errors import EmbedderError, InvalidDocument, RetrieverError
from retriever.scope import Scope

logger = logging.getLogger(__name__)

# Enough for full batches of the embedder, and a bound on the work that a crash can lose.
_BATCH_CHUNKS = 256

# Store(document, revision, spans, vectors [len(spans), dim])
Store = Callable[[Document, str, list[ChunkSpan], Vectors], UpsertResult]


@dataclass(frozen=True)
class IngestResult:
    """What became of one document.

    Attributes:
        doc_id: the document.
        status: what happened to it.
        chunks: its chunks now; none if it failed.
        removed_chunk_ids: ids of the chunks of its previous revision.
        error: why it failed; None otherwise.
    """

    doc_id: str
    status: Literal["created", "updated", "unchanged", "failed"]
    chunks: list[Chunk] = field(default_factory=list)
    removed_chunk_ids: list[int] = field(default_factory=list)
    error: RetrieverError | None = None


@dataclass
class _Item:
    """A document being ingested; it is done when it has a result."""

    document: Document
    revision: str = ""
    spans: list[ChunkSpan] = field(default_factory=list)
    result: IngestResult | None = None

    @property
    def texts(self) -> list[str]:
        """The texts to embed. They contain the title: without it a chunk may not name its topic."""
        title = f"{self.document.title}\n" if self.document.title else ""
        return [title + self.document.text[span.start : span.end] for span in self.spans]

    def fail(self, error: RetrieverError) -> None:
        self.result = IngestResult(self.document.doc_id, "failed", error=error)


def ingest(
    documents: Iterable[Document],
    chunking: ChunkSettings,
    embedder: Embedder,
    catalog: Catalog,
    store: Store,
    scope: Scope,
) -> list[IngestResult]:
    """Ingest documents; one that fails does not affect the others.

    Args:
        documents: the documents, in any number.
        chunking: how to split them.
        embedder: a started embedder.
        catalog: where stored revisions are looked up.
        store: stores one document with its spans and vectors.
        scope: the tenant's collection.

    Returns:
        One result per document, in their order.
    """
    fingerprint = chunking.fingerprint
    items: list[_Item] = []
    pending: list[_Item] = []
    seen: set[str] = set()
    for document in documents:
        # If a document came earlier in this call, its stored revision may still change.
        known = None if document.doc_id in seen else catalog
        seen.add(document.doc_id)
        item = _prepare(document, chunking, fingerprint, known, scope)
        items.append(item)
        if item.result is None:
            pending.append(item)
        if sum(len(waiting.spans) for waiting in pending) >= _BATCH_CHUNKS:
            _flush(pending, embedder, store)
            pending = []
    _flush(pending, embedder, store)
    return [item.result for item in items if item.result is not None]


def _prepare(
    document: Document,
    chunking: ChunkSettings,
    fingerprint: str,
    catalog: Catalog | None,
    scope: Scope,
) -> _Item:
    """Validate and split a document; it has a result already if it is unchanged or invalid."""
    item = _Item(document)
    try:
        validate_document(document)
        item.revision = document_revision(document, fingerprint)
        known = None if catalog is None else catalog.revision(document.doc_id, scope=scope)
        if catalog is not None and known == item.revision:
            chunks = catalog.chunks_of(document.doc_id, scope=scope)
            item.result = IngestResult(document.doc_id, "unchanged", chunks)
        else:
            item.spans = chunking.split(document.text, document.title)
    except RetrieverError as error:
        item.fail(error)
    except Exception as error:
        logger.exception("document %r cannot be cut into chunks", document.doc_id)
        item.fail(InvalidDocument(f"cannot be cut into chunks: {error}"))
    return item


def _flush(items: list[_Item], embedder: Embedder, store: Store) -> None:
    """Embed all texts at once, then store each document; if embedding fails, try each alone."""
    try:
        vectors = _embed([text for item in items for text in item.texts], embedder)
    except EmbedderError as error:
        if len(items) == 1:
            items[0].fail(error)
            return
        for item in items:
            _flush([item], embedder, store)
        return
    start = 0
    for item in items:
        end = start + len(item.spans)
        try:
            done = store(item.document, item.revision, item.spans, vectors[start:end])
            item.result = IngestResult(
                item.document.doc_id, done.status, done.chunks, done.removed_chunk_ids
            )
        except RetrieverError as error:
            item.fail(error)
        start = end


def _embed(texts: list[str], embedder: Embedder) -> Vectors:
    if not texts:
        return np.zeros((0, embedder.dim), dtype=np.float32)
    try:
        return embedder.embed(texts)
    except EmbedderError:
        raise
    except Exception as error:
        raise EmbedderError(f"embedding {len(texts)} texts failed: {error}") from error
