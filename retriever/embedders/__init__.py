"""Embedders turn texts into vectors. Each implements the protocol `Embedder` in `base.py`."""

from retriever.embedders.base import Embedder, EmbeddingSpace, space_of
from retriever.embedders.endpoint_embedder import EndpointEmbedder
from retriever.embedders.local_embedder import LocalEmbedder

__all__ = [
    "Embedder",
    "EmbeddingSpace",
    "EndpointEmbedder",
    "LocalEmbedder",
    "space_of",
]
