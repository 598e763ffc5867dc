"""A vector index outside the tree."""

from __future__ import annotations

from typing import Any

from kvstitch.retriever.index.vector_index import VectorIndex


class CountingIndex(VectorIndex):
    """Searches as FAISS does, and counts."""

    searches = 0

    def search(self, *given: Any, **more: Any) -> Any:
        CountingIndex.searches += 1
        return super().search(*given, **more)
