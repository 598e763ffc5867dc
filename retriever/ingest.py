"""Splits and embeds documents, which takes long and changes nothing.

Storing them is the retriever's other half of an ingest. A caller that guards changes by a lock can
leave this half out of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from retriever.analysis.folding import clean
from retriever.catalog.catalog import Catalog
from retriever.documents import Document, document_revision, validate_document
from retriever.embedders.base import Embedder, Vectors
from retriever.errors import (
    CatalogUnreachable,
    EmbedderError,
    InvalidDocument,
    RetrieverError,
    SplitStopped,
)
from retriever.scope import Scope
from retriever.splitting.chunking import ChunkSettings, ChunkSpan
from retriever.splitting.heading_paths import heading_paths

logger = logging.getLogger(__name__)

# Enough for full batches of the embedder, and a bound on the work that a crash can lose.
_BATCH_CHUNKS = 256


@dataclass
class EmbeddedDocument:
    """A document that is ready to be stored."""

    document: Document
    revision: str = ""
    spans: list[ChunkSpan] = field(default_factory=list)
    vectors: Vectors | None = None
    error: RetrieverError | None = None
    title_cut: bool = False

    @property
    def texts(self) -> list[str]:
        """The texts to embed. They contain the title and the headings above the chunk: without
        these it may not name its topic."""
        return self.texts_of(slice(None))

    def texts_of(self, part: slice) -> list[str]:
        """Return the texts of some of its chunks."""
        texts = []
        for span, path in zip(self.spans[part], self._heading_paths[part], strict=True):
            parts = [self.document.title, path, self.document.text[span.start : span.end]]
            texts.append(clean("\n".join(part for part in parts if part)))
        return texts

    @cached_property
    def _heading_paths(self) -> list[str]:
        return heading_paths(self.document, self.spans)


def embed_documents(
    documents: Iterable[Document],
    chunking: ChunkSettings,
    embedder: Embedder,
    catalog: Catalog,
    scope: Scope,
) -> Iterator[EmbeddedDocument]:
    """Split and embed documents, in their order; one that fails does not affect the others."""
    fingerprint = chunking.fingerprint
    items: list[EmbeddedDocument] = []
    new: list[EmbeddedDocument] = []
    seen: set[str] = set()
    for document in documents:
        # If a document came earlier in this call, its stored revision may still change.
        known = None if document.doc_id in seen else catalog
        seen.add(document.doc_id)
        item = EmbeddedDocument(document)
        items.append(item)
        if _split(item, chunking, fingerprint, known, scope):
            new.append(item)
        if sum(len(waiting.spans) for waiting in new) >= _BATCH_CHUNKS:
            _embed_batch(new, embedder)
            yield from items
            items, new = [], []
    _embed_batch(new, embedder)
    yield from items


def split_document(
    document: Document,
    chunking: ChunkSettings,
    embedder: Embedder,
    catalog: Catalog,
    scope: Scope,
    stopped: Callable[[], bool] | None = None,
) -> EmbeddedDocument:
    """Split a document whose chunks `embed_part` embeds; arguments as of `embed_documents`."""
    item = EmbeddedDocument(document)
    if _split(item, chunking, chunking.fingerprint, catalog, scope, stopped):
        item.vectors = np.zeros((len(item.spans), embedder.dim), dtype=np.float32)
    return item


def embed_part(item: EmbeddedDocument, start: int, count: int, embedder: Embedder) -> None:
    """Embed so many chunks of a document, from this one on."""
    assert item.vectors is not None
    part = slice(start, start + count)
    item.vectors[part] = _embed(item.texts_of(part), embedder)


def _split(
    item: EmbeddedDocument,
    chunking: ChunkSettings,
    fingerprint: str,
    catalog: Catalog | None,
    scope: Scope,
    stopped: Callable[[], bool] | None = None,
) -> bool:
    """Validate and split a document; False if it is stored already or invalid."""
    document = item.document
    try:
        validate_document(document)
        document = replace(document, title=chunking.short_title(document.title))
        item.title_cut = document.title != item.document.title
        item.document = document
        item.revision = document_revision(document, fingerprint)
        if catalog is not None and catalog.revision(document.doc_id, scope=scope) == item.revision:
            return False
        item.spans = chunking.split(document.text, document.title, stopped)
    except (CatalogUnreachable, SplitStopped):
        raise  # that is no fault of the document
    except RetrieverError as error:
        item.error = error
    except Exception as error:
        logger.exception("document %r cannot be cut into chunks", document.doc_id)
        item.error = InvalidDocument(f"cannot be cut into chunks: {error}")
    return item.error is None


def _embed_batch(items: list[EmbeddedDocument], embedder: Embedder) -> None:
    """Embed all texts at once; if that fails, those of each document alone."""
    try:
        vectors = _embed([text for item in items for text in item.texts], embedder)
    except EmbedderError as error:
        if len(items) == 1:
            items[0].error = error
            return
        for item in items:
            _embed_batch([item], embedder)
        return
    start = 0
    for item in items:
        end = start + len(item.spans)
        item.vectors = vectors[start:end]
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
