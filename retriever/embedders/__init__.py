"""Texts to vectors. One file per embedder behind the protocol in base.py."""

from retriever.embedders.base import Embedder, EmbeddingSpace, space_of
from retriever.embedders.endpoint import EndpointEmbedder
from retriever.embedders.hashing import HashingEmbedder
from retriever.embedders.minilm import LocalEmbedder

__all__ = [
    "Embedder",
    "EmbeddingSpace",
    "EndpointEmbedder",
    "HashingEmbedder",
    "LocalEmbedder",
    "space_of",
]
