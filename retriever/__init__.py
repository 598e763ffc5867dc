"""Documents in, passages with citations out. Knows nothing of KV caches, requests or HTTP.

Importing this package imports neither torch nor faiss.
"""

from retriever.catalog.catalog import Catalog, Counts
from retriever.chunking.chunker import ChunkSettings, Span, split
from retriever.chunking.tokens import TokenCounter, TokenizerCounter, WordCounter
from retriever.documents import (
    Chunk,
    DocFilter,
    Document,
    DocumentInfo,
    DocumentPage,
    Passage,
    SearchMode,
    StoredDocument,
)
from retriever.embedders import Embedder, EndpointEmbedder, HashingEmbedder, LocalEmbedder
from retriever.filters import Filter, parse_filter
from retriever.ingest import IngestResult
from retriever.rerankers import (
    EndpointReranker,
    OverlapReranker,
    Reranked,
    Reranker,
    rerank,
)
from retriever.retriever import Retriever, StartReport
from retriever.scope import Scope
from retriever.search.index import VectorIndex

__all__ = [
    "Catalog",
    "Chunk",
    "ChunkSettings",
    "Counts",
    "DocFilter",
    "Document",
    "DocumentInfo",
    "DocumentPage",
    "Embedder",
    "EndpointEmbedder",
    "EndpointReranker",
    "Filter",
    "HashingEmbedder",
    "IngestResult",
    "LocalEmbedder",
    "OverlapReranker",
    "Passage",
    "Reranked",
    "Reranker",
    "Retriever",
    "Scope",
    "SearchMode",
    "Span",
    "StartReport",
    "StoredDocument",
    "TokenCounter",
    "TokenizerCounter",
    "VectorIndex",
    "WordCounter",
    "parse_filter",
    "rerank",
    "split",
]
