"""Rerankers sort the hits of a search anew. Each implements `Reranker` in `base.py`."""

from retriever.rerankers.base import Reranked, Reranker, rerank
from retriever.rerankers.endpoint_reranker import EndpointReranker

__all__ = ["EndpointReranker", "Reranked", "Reranker", "rerank"]
