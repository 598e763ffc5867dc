"""The records of the retriever: documents go in, chunks are stored, passages come out. What it
tells of stored documents are the records of the API (kvstitch.records)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvstitch.records.documents import DocumentMark
from kvstitch.retriever.errors import InvalidDocument, RetrieverError
from kvstitch.retriever.filters import MATCH_ALL, Filter
from kvstitch.retriever.scope import EVERYBODY, Scope, groups_of, joined_readers, joined_writers

MAX_ID_CHARS = 512
MAX_METADATA_DEPTH = 32

_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*+\\u0000")


@dataclass
class Document:
    """A document as the user sends it; a mark holds until the next one of its kind."""

    doc_id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    marks: tuple[DocumentMark, ...] = ()
    readers: str = EVERYBODY
    writers: str | None = None  # None: those that it has, of a new one those of its sender


@dataclass(frozen=True)
class Chunk:
    """A contiguous piece of one revision of a document; `prefixes`, where they were asked for, are
    the chunks that its KV is computed behind."""

    chunk_id: int
    doc_id: str
    ordinal: int
    text: str
    title: str
    char_start: int
    char_end: int
    tokens: int
    revision: str
    page: str | None = None
    heading: str | None = None
    readers: str = EVERYBODY
    prefixes: Sequence[Sequence[Chunk]] = field(default=(), compare=False, repr=False)

    @property
    def public_id(self) -> int:
        """What clients call it: below 2^53, made of what it is. `chunk_id` counts everybody's; one
        below 0 is of this prompt alone."""
        named = json.dumps([self.doc_id, self.revision, self.ordinal])
        made = int.from_bytes(hashlib.sha256(named.encode()).digest()[:8]) >> 11
        return self.chunk_id if self.chunk_id < 0 else made

    @property
    def lead(self) -> str:
        """What its text repeats of what stands before `char_start`."""
        return self.text[: len(self.text) - (self.char_end - self.char_start)]


SearchMode = Literal["dense", "sparse", "hybrid"]


@dataclass(frozen=True)
class Passage:
    """A search hit. The chunk's doc_id and character range are the citation."""

    chunk: Chunk
    score: float
    dense_rank: int | None = None
    dense_score: float | None = None
    sparse_rank: int | None = None
    sparse_score: float | None = None
    rerank_score: float | None = None
    exact: bool = False

    @property
    def position(self) -> tuple[str, int]:
        """The document, and the chunk's number in it."""
        return self.chunk.doc_id, self.chunk.ordinal


@dataclass(frozen=True)
class DocFilter:
    doc_ids: tuple[str, ...] | None = None
    where: Filter = MATCH_ALL
    named: str = ""


def canonical_metadata(metadata: Mapping[str, Any]) -> str:
    """Metadata as sorted JSON; this form is stored and hashed."""
    return json.dumps(dict(metadata), sort_keys=True, ensure_ascii=False, allow_nan=False)


def validate_document(document: Document) -> None:
    """Check that a document can be stored exactly as it is."""
    if not isinstance(document.doc_id, str) or not document.doc_id.strip():
        raise InvalidDocument("doc_id must be a non-empty string")
    for name in ("doc_id", "title", "text", "readers"):
        value = getattr(document, name)
        if not isinstance(value, str):
            raise InvalidDocument(f"{name} must be a string, not {type(value).__name__}")
        if name == "doc_id" and len(value) > MAX_ID_CHARS:
            raise InvalidDocument(f"{name} is longer than {MAX_ID_CHARS} characters")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidDocument(
                f"{name} holds a lone surrogate at character {error.start}; send valid Unicode"
            ) from error
    if joined_readers(groups_of(document.readers)) != document.readers:
        raise InvalidDocument("readers must be groups as joined_readers puts them together")
    if (given := document.writers) is not None and joined_writers(groups_of(given)) != given:
        raise InvalidDocument("writers must be groups as joined_writers puts them together")
    try:
        metadata = canonical_metadata(document.metadata)
        metadata.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidDocument(f"metadata is not JSON: {error}") from error
    # SQLite ends a JSON string at a NUL, and one document with too deep JSON makes every filter
    # query fail, whichever documents it is about.
    if _ESCAPED_NUL.search(metadata):
        raise InvalidDocument("metadata holds a NUL character; leave it out")
    if _depth(document.metadata) > MAX_METADATA_DEPTH:
        raise InvalidDocument(f"metadata is nested deeper than {MAX_METADATA_DEPTH}")
    starts = [mark.start for mark in document.marks]
    if starts != sorted(starts) or (
        starts and not 0 <= starts[0] <= starts[-1] <= len(document.text)
    ):
        raise InvalidDocument("marks must be sorted, and lie within the text")


def document_revision(document: Document, chunking: str) -> str:
    """sha256 of the document, but for its id, and of the fingerprint of the chunking parameters."""
    parts: list[Any] = [document.text, document.title, canonical_metadata(document.metadata)]
    parts.append(chunking)
    if document.marks:  # without any the hash is that of earlier releases
        parts.append([[mark.start, mark.kind, mark.label] for mark in document.marks])
    if document.readers:  # likewise
        parts.append({"readers": document.readers})
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _depth(value: object) -> int:
    match value:
        case Mapping():
            return 1 + max(map(_depth, value.values()), default=0)
        case list() | tuple():
            return 1 + max(map(_depth, value), default=0)
    return 0


@dataclass(frozen=True)
class CatalogState:
    """A state of the catalog. The token is random, so that a restored backup of the same generation
    differs."""

    generation: int
    token: str


@dataclass(frozen=True)
class IndexChange:
    """What one change of the catalog means for a vector index."""

    scope: Scope
    removed: list[int]
    ids: list[int]
    vectors: npt.NDArray[np.float32]


@dataclass(frozen=True)
class IngestResult:
    """What became of one document: its chunks now, and those of its previous revision."""

    doc_id: str
    status: Literal["created", "updated", "unchanged", "failed"]
    chunks: list[Chunk] = field(default_factory=list)
    removed_chunk_ids: list[int] = field(default_factory=list)
    error: RetrieverError | None = None
    state: CatalogState | None = None
