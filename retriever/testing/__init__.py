"""Stand-ins for models, for tests: deterministic, and they need no files and no network."""

from retriever.testing.hashing_embedder import HashingEmbedder
from retriever.testing.overlap_reranker import OverlapReranker
from retriever.testing.word_counter import WordCounter

__all__ = ["HashingEmbedder", "OverlapReranker", "WordCounter"]
