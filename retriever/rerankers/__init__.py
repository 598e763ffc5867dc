"""A second look at what a search found. One file per reranker behind the protocol in base.py."""

from retriever.rerankers.base import Reranked, Reranker, rerank
from retriever.rerankers.endpoint_reranker import EndpointReranker

__all__ = ["EndpointReranker", "Reranked", "Reranker", "rerank"]
