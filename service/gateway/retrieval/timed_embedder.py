"""An embedder that measures its calls, for the stage `embed` of an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from retriever import Embedder
from retriever.embedders.base import CountedVectors, Vectors


class TimedEmbedder:
    """An embedder that remembers, per thread, how long its last call took."""

    def __init__(self, inner: Embedder) -> None:
        self._inner = inner
        self._local = threading.local()

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def revision(self) -> str:
        return self._inner.revision

    @property
    def dim(self) -> int:
        return self._inner.dim

    @property
    def last_s(self) -> float:
        """Seconds of this thread's last call."""
        return float(getattr(self._local, "last_s", 0.0))

    def start(self) -> None:
        self._inner.start()

    def close(self) -> None:
        self._inner.close()

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self.embed_counted(texts).vectors

    def embed_counted(self, texts: Sequence[str]) -> CountedVectors:
        started = time.perf_counter()
        try:
            return self._inner.embed_counted(texts)
        finally:
            self._local.last_s = time.perf_counter() - started
