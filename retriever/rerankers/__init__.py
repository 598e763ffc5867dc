"""A second look at what a search found. One file per reranker behind the protocol in base.py."""

from retriever.rerankers.base import Reranked, Reranker, rerank
from retriever.rerankers.endpoint import EndpointReranker
from retriever.rerankers.overlap import OverlapReranker

__all__ = ["EndpointReranker", "OverlapReranker", "Reranked", "Reranker", "rerank"]
