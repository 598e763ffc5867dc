"""Stores documents and finds passages with citations: chunking, embedding, search, reranking.

Importing this package imports neither torch nor faiss.
"""

from retriever.catalog.catalog import Catalog
from retriever.catalog.catalog_records import CorpusCounts
from retriever.chunking import ChunkSettings, ChunkSpan, TokenCounter, split
from retriever.documents import (
    Chunk,
    DocFilter,
    Document,
    DocumentInfo,
    DocumentPage,
    Mark,
    MarkKind,
    Passage,
    Place,
    SearchMode,
    StoredDocument,
)
from retriever.embedders import Embedder, EndpointEmbedder, LocalEmbedder
from retriever.filters import Filter, parse_filter
from retriever.index.vector_index import VectorIndex
from retriever.ingest import EmbeddedDocument, IngestResult
from retriever.prefix_chunks import PrefixChunks, PrefixedChunk, PrefixKind
from retriever.rerankers import EndpointReranker, Reranked, Reranker, rerank
from retriever.retriever import Retriever, StartReport
from retriever.scope import Scope

__all__ = [
    "Catalog",
    "Chunk",
    "ChunkSettings",
    "ChunkSpan",
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
    "MarkKind",
    "Passage",
    "Place",
    "PrefixChunks",
    "PrefixKind",
    "PrefixedChunk",
    "Reranked",
    "Reranker",
    "Retriever",
    "Scope",
    "SearchMode",
    "StartReport",
    "StoredDocument",
    "TokenCounter",
    "VectorIndex",
    "parse_filter",
    "rerank",
    "split",
]
