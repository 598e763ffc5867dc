"""Stores documents and finds passages with citations: chunking, embedding, search, reranking.

Importing this package imports neither torch nor faiss, and SQLAlchemy, which takes 0.3 s of a core,
only when a name is asked for that needs a database.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from kvstitch.retriever.chunking import ChunkSettings
from kvstitch.retriever.documents import (
    Chunk,
    CorpusCounts,
    DocFilter,
    Document,
    DocumentInfo,
    DocumentPage,
    IngestResult,
    Mark,
    Passage,
    SearchMode,
    StoredDocument,
)
from kvstitch.retriever.embedders import Embedder, EndpointEmbedder
from kvstitch.retriever.embedders.local_embedder import LocalEmbedder
from kvstitch.retriever.filters import Filter, parse_filter
from kvstitch.retriever.index.vector_index import VectorIndex
from kvstitch.retriever.rerankers import EndpointReranker, Reranked, Reranker, rerank
from kvstitch.retriever.scope import Scope

if TYPE_CHECKING:
    from kvstitch.retriever.ingest import EmbeddedDocument
    from kvstitch.retriever.prefixes.prefix_choice import PrefixKind, PrefixRule
    from kvstitch.retriever.prefixes.prefix_chunks import PrefixChunks
    from kvstitch.retriever.retriever import Retriever

__all__ = [
    "Chunk",
    "ChunkSettings",
    "CorpusCounts",
    "DocFilter",
    "Document",
    "DocumentInfo",
    "DocumentPage",
    "EmbeddedDocument",
    "Embedder",
    "EndpointEmbedder",
    "EndpointReranker",
    "Filter",
    "IngestResult",
    "LocalEmbedder",
    "Mark",
    "Passage",
    "PrefixChunks",
    "PrefixKind",
    "PrefixRule",
    "Reranked",
    "Reranker",
    "Retriever",
    "Scope",
    "SearchMode",
    "StoredDocument",
    "VectorIndex",
    "parse_filter",
    "rerank",
]

_WITH_DATABASE = {
    "EmbeddedDocument": "kvstitch.retriever.ingest",
    **dict.fromkeys(("PrefixKind", "PrefixRule"), "kvstitch.retriever.prefixes.prefix_choice"),
    "PrefixChunks": "kvstitch.retriever.prefixes.prefix_chunks",
    "Retriever": "kvstitch.retriever.retriever",
}


def __getattr__(name: str) -> object:
    if name not in _WITH_DATABASE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WITH_DATABASE[name]), name)
