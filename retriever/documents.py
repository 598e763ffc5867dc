"""The nouns: documents in, chunks inside, passages out. Knows no tokenizer, vector or database."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from retriever.errors import InvalidDocument
from retriever.filters import MATCH_ALL, Filter

MAX_ID_CHARS = 512
MAX_METADATA_DEPTH = 32

_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*+\\u0000")


@dataclass(frozen=True)
class Document:
    """What a user hands in. `doc_id` is theirs and names the document over all its revisions,
    within a tenant's collection (see scope.py)."""

    doc_id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Chunk:
    """A contiguous piece of one revision of a document.

    `text == document.text[char_start:char_end]`; `tokens` counts the rendered segment, as the
    serving tokenizer sees it. A `chunk_id` is never used twice, not even after a delete.
    """

    chunk_id: int
    doc_id: str
    ordinal: int
    text: str
    title: str
    char_start: int
    char_end: int
    tokens: int
    revision: str


SearchMode = Literal["dense", "sparse", "hybrid"]


@dataclass(frozen=True)
class Passage:
    """A search hit; with the chunk's doc_id and character range it is the citation.

    `score` is what it was ranked by: the cosine of query and chunk in [-1, 1] (dense), BM25
    (sparse), the sum of reciprocal ranks (hybrid), or the reranker's score. Ranks count from 1;
    None: not among the candidates of that ranking, or not asked for.
    """

    chunk: Chunk
    score: float
    dense_rank: int | None = None
    dense_score: float | None = None
    sparse_rank: int | None = None
    sparse_score: float | None = None
    rerank_score: float | None = None


@dataclass(frozen=True)
class DocumentInfo:
    """A stored document without its text. Times are Unix seconds.

    `pinned`: the user wants its KV kept near; it stays over revisions.
    """

    doc_id: str
    title: str
    metadata: Mapping[str, Any]
    revision: str
    created: float
    updated: float
    num_chars: int
    num_chunks: int
    num_tokens: int
    pinned: bool = False


@dataclass(frozen=True)
class StoredDocument:
    """A stored document with its text."""

    document: Document
    info: DocumentInfo


@dataclass(frozen=True)
class DocumentPage:
    """One page of a listing, in the order of doc_id; `next_cursor` is None on the last page."""

    documents: list[DocumentInfo]
    next_cursor: str | None


@dataclass(frozen=True)
class DocFilter:
    """Which documents count: those among `doc_ids` (None: all) whose metadata passes `where`."""

    doc_ids: tuple[str, ...] | None = None
    where: Filter = MATCH_ALL


def canonical_metadata(metadata: Mapping[str, Any]) -> str:
    """Metadata as sorted JSON, the form that is stored and hashed."""
    return json.dumps(dict(metadata), sort_keys=True, ensure_ascii=False, allow_nan=False)


def validate_document(document: Document) -> None:
    """Raise InvalidDocument if the document cannot be stored exactly as it is."""
    if not isinstance(document.doc_id, str) or not document.doc_id.strip():
        raise InvalidDocument("doc_id must be a non-empty string")
    if len(document.doc_id) > MAX_ID_CHARS:
        raise InvalidDocument(f"doc_id is longer than {MAX_ID_CHARS} characters")
    for name in ("doc_id", "title", "text"):
        value = getattr(document, name)
        if not isinstance(value, str):
            raise InvalidDocument(f"{name} must be a string, not {type(value).__name__}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidDocument(
                f"{name} holds a lone surrogate at character {error.start}; send valid Unicode"
            ) from error
    try:
        metadata = canonical_metadata(document.metadata)
        metadata.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidDocument(f"metadata is not JSON: {error}") from error
    # What follows would make filters wrong or fail: SQLite ends a JSON string at a NUL, and refuses
    # JSON that is too deep, for all documents at once.
    if _ESCAPED_NUL.search(metadata):
        raise InvalidDocument("metadata holds a NUL character; leave it out")
    if _depth(document.metadata) > MAX_METADATA_DEPTH:
        raise InvalidDocument(f"metadata is nested deeper than {MAX_METADATA_DEPTH}")


def document_revision(document: Document, chunking: str) -> str:
    """sha256 over content, title, metadata and the fingerprint of the chunking parameters."""
    parts = [document.text, document.title, canonical_metadata(document.metadata), chunking]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _depth(value: object) -> int:
    match value:
        case Mapping():
            return 1 + max(map(_depth, value.values()), default=0)
        case list() | tuple():
            return 1 + max(map(_depth, value), default=0)
    return 0
