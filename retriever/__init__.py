"""Stores documents and finds passages with citations: chunking, embedding, search, reranking.

Importing this package imports neither torch nor faiss, and SQLAlchemy, which takes 0.3 s of a core,
only when a name is asked for that needs a database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstitch.retriever.chunking import ChunkSettings
from kvstitch.retriever.documents import Chunk, DocFilter, Document, Passage, SearchMode
from kvstitch.retriever.embedders import Embedder, EndpointEmbedder
from kvstitch.retriever.embedders.local_embedder import LocalEmbedder
from kvstitch.retriever.filters import parse_filter
from kvstitch.retriever.rerankers import EndpointReranker, Reranker, rerank
from kvstitch.retriever.scope import Scope

if TYPE_CHECKING:
    from kvstitch.retriever.retriever import Retriever

__all__ = [
    "Chunk",
    "ChunkSettings",
    "DocFilter",
    "Document",
    "Embedder",
    "EndpointEmbedder",
    "EndpointReranker",
    "LocalEmbedder",
    "Passage",
    "Reranker",
    "Retriever",
    "Scope",
    "SearchMode",
    "parse_filter",
    "rerank",
]


def __getattr__(name: str) -> object:
    if name != "Retriever":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvstitch.retriever.retriever import Retriever

    return Retriever
