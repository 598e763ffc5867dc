"""Splits and embeds documents, which takes long and changes nothing.

Storing them is the retriever's other half of an ingest. A caller that guards changes by a lock can
leave this half out of it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile

import numpy as np

from kvstitch.records.documents import DocumentMark
from kvstitch.retriever.analysis.spelling import clean
from kvstitch.retriever.catalog.catalog import Catalog
from kvstitch.retriever.chunking import ChunkSettings, ChunkSpan
from kvstitch.retriever.documents import Document, document_revision, validate_document
from kvstitch.retriever.embedders import Embedder, EmbeddingSpace, Vectors, space_of
from kvstitch.retriever.errors import (
    EmbedderError,
    InvalidDocument,
    RetrieverError,
    SplitStopped,
    Unreachable,
)
from kvstitch.retriever.scope import DEFAULT_SCOPE, Scope

logger = logging.getLogger(__name__)

# Enough for full batches of the embedder, and a bound on the work that a crash can lose.
_BATCH_CHUNKS = 256


@dataclass(kw_only=True)
class EmbeddedDocument(Document):
    """A document for a scope and, once it is split and embedded, what is stored of it."""

    scope: Scope = DEFAULT_SCOPE
    revision: str = ""
    spans: list[ChunkSpan] = field(default_factory=list)
    vectors: Vectors | None = None
    space: EmbeddingSpace | None = None  # of the vectors
    error: RetrieverError | None = None
    title_cut: bool = False

    def texts(self, start: int = 0, count: int | None = None) -> list[str]:
        """Return the texts to embed of some chunks. They contain the title and the headings above
        the chunk: without these it may not name its topic."""
        part = slice(start, None if count is None else start + count)
        texts = []
        for span, path in zip(self.spans[part], self._heading_paths[part], strict=True):
            parts = [self.title, path, span.text(self.text)]
            texts.append(clean("\n".join(part for part in parts if part)))
        return texts

    @cached_property
    def _heading_paths(self) -> list[str]:
        return heading_paths(self, self.spans) if self.marks else [""] * len(self.spans)


class DocumentEmbedder:
    """Splits documents as a corpus splits them, and embeds their chunks. Thread-safe."""

    def __init__(self, catalog: Catalog, embedder: Embedder, chunking: ChunkSettings) -> None:
        self._catalog = catalog
        self.embedder = embedder
        self._chunking = chunking

    def embed(self, documents: Iterable[EmbeddedDocument]) -> Iterator[EmbeddedDocument]:
        """Split and embed documents, in their order; one that fails does not affect the others."""
        items: list[EmbeddedDocument] = []
        new: list[EmbeddedDocument] = []
        seen: set[tuple[Scope, str]] = set()
        for item in documents:
            # If a document came earlier in this call, its stored revision may still change.
            named = item.scope, item.doc_id
            items.append(item)
            if self._split(item, look_up=named not in seen):
                new.append(item)
            seen.add(named)
            if sum(len(waiting.spans) for waiting in new) >= _BATCH_CHUNKS:
                self._embed_all(new)
                yield from items
                items, new = [], []
        self._embed_all(new)
        yield from items

    def split(self, item: EmbeddedDocument, stopped: Callable[[], bool] | None = None) -> None:
        """Split a document that `embed_part` embeds; it gets no chunks if it is stored."""
        if self._split(item, stopped=stopped):
            item.space = space_of(self.embedder)
            item.vectors = np.zeros((len(item.spans), item.space.dim), dtype=np.float32)

    def embed_part(self, item: EmbeddedDocument, start: int, count: int) -> None:
        """Embed so many chunks of a document that was split, from this one on."""
        assert item.vectors is not None
        embedder = self.embedder
        if item.space == space_of(embedder):  # else it is embedded anew when it is stored
            vectors = embed_documents(embedder, item.texts(start, count))
            item.vectors[start : start + count] = vectors

    def _split(
        self,
        item: EmbeddedDocument,
        *,
        look_up: bool = True,
        stopped: Callable[[], bool] | None = None,
    ) -> bool:
        """Validate and split a document; False if it is stored already or invalid."""
        try:
            validate_document(item)
            title = self._chunking.short_title(item.title)
            item.title_cut |= title != item.title
            item.title = title
            item.revision = document_revision(item, self._chunking.fingerprint)
            stored = self._catalog.revision(item.doc_id, scope=item.scope) if look_up else None
            if stored is not None:
                writers = stored[1] if item.writers is None else item.writers
                if stored == (item.revision, writers):
                    return False
            item.spans = self._chunking.split(item.text, item.title, stopped)
        except (Unreachable, SplitStopped):
            raise  # that is no fault of the document
        except RetrieverError as error:
            item.error = error
        except Exception as error:
            logger.exception("document %r cannot be cut into chunks", item.doc_id)
            item.error = InvalidDocument(f"cannot be cut into chunks: {error}")
        return item.error is None

    def _embed_all(self, items: list[EmbeddedDocument]) -> None:
        """Embed all texts at once; if that fails, those of each document alone."""
        if not items:
            return
        try:
            embedder = self.embedder
            vectors = embed_documents(embedder, (t for item in items for t in item.texts()))
        except Exception as error:
            if len(items) == 1:
                if not isinstance(error, EmbedderError):
                    error = EmbedderError(f"embedding failed: {error}")
                items[0].error = error
                return
            for item in items:
                self._embed_all([item])
            return
        start = 0
        for item in items:
            end = start + len(item.spans)
            item.vectors, item.space = vectors[start:end], space_of(embedder)
            start = end


def embed_documents(embedder: Embedder, texts: Iterable[str]) -> Vectors:
    """Embed texts that may answer questions: `[texts, dim]`. Raises EmbedderError."""
    prompt = embedder.prompts.document
    return embedder.embed([prompt + text for text in texts])[0]


SEPARATOR = " > "
MAX_PATH_CHARS = 200  # the nearest headings; an embedder reads some hundred words of a chunk
_SIGNS = re.compile("(?:#{1,6}|={1,6})(?= )")
_UNDERLINE = re.compile(r"[^\n]*\n([!-/:-@\[-`{-~])\1*\s*$", re.M)


def heading_paths(document: Document, spans: Sequence[ChunkSpan]) -> list[str]:
    """Return the headings above each chunk, outermost first: "Parts > Screws"; "" if none are.

    Headings inside a chunk, and the document's title, are left out: the chunk says them by itself.
    A level is told by the signs before a heading (Markdown, AsciiDoc), else by the line below it
    (reStructuredText); without either a chunk is below its last heading only.
    """
    marks = [mark for mark in document.marks if mark.kind == "heading"]
    levels = _levels(document.text, marks)
    paths = []
    above: list[tuple[int, str]] = []  # (level, label) of the headings that hold
    passed = 0
    for span in spans:
        while passed < len(marks) and marks[passed].start < span.start:
            above = _headings_above(above, levels[passed])
            above.append((levels[passed], marks[passed].label))
            passed += 1
        inside = above
        if passed < len(marks) and marks[passed].start == span.start:
            inside = _headings_above(above, levels[passed])
        paths.append(_join([label for _, label in inside if label != document.title]))
    return paths


def _levels(text: str, marks: Sequence[DocumentMark]) -> list[int]:
    """Return the level of each heading, 1 the outermost."""
    signs = [_SIGNS.match(text, mark.start) for mark in marks]
    styles = ["=", "-"] if any(signs) else []
    levels = []
    for mark, sign in zip(marks, signs, strict=True):
        if sign:
            levels.append(len(sign[0]))
        elif line := _UNDERLINE.match(text, mark.start):
            above = text.rfind("\n", 0, max(0, mark.start - 1)) + 1
            overlined = mark.start and text[above : mark.start].strip().strip(line[1]) == ""
            style = line[1] + ("^" if overlined and text[above : mark.start].strip() else "")
            if style not in styles:
                styles.append(style)
            levels.append(styles.index(style) + 1)
        else:
            levels.append(1)
    return levels


def _headings_above(above: list[tuple[int, str]], level: int) -> list[tuple[int, str]]:
    """Return the headings that a heading of this level stands below."""
    return [*takewhile(lambda one: one[0] < level, above)]


def _join(labels: list[str]) -> str:
    while len(labels) > 1 and len(SEPARATOR.join(labels)) > MAX_PATH_CHARS:
        labels = labels[1:]
    return SEPARATOR.join(labels)[:MAX_PATH_CHARS]
