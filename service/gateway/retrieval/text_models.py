"""The retriever's models by themselves, for texts that are no documents.

Embedding for clients has a thread of its own, so that it delays neither searches nor documents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from retriever import Embedder, Reranker
from retriever.embedders.base import CountedVectors, EmbeddingSpace, space_of
from retriever.errors import RerankerError, RetrieverError
from service.errors import NoReranker, RerankerFailed
from service.gateway.retrieval.error_translation import service_error


class TextModels:
    """Embedder and reranker, which the retriever starts and closes."""

    def __init__(self, embedder: Embedder, reranker: Reranker | None) -> None:
        """`reranker`: None: the service has none."""
        self._embedder = embedder
        self._reranker = reranker
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embed-texts")

    def close(self) -> None:
        """Leave what waits; what is being computed ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def space(self) -> EmbeddingSpace:
        """Name and dimensions of the embedder."""
        return space_of(self._embedder)

    async def embed(self, texts: Sequence[str]) -> CountedVectors:
        """Embed texts as passages are embedded; calls take turns.

        Raises:
            InternalError: The embedder failed.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, self._embedder.embed_counted, texts)
        except RetrieverError as error:
            raise service_error(error) from error

    async def scores(self, query: str, texts: Sequence[str], *, timeout_s: float) -> list[float]:
        """The reranker's score of every text; higher is better.

        Raises:
            NoReranker: The service has none.
            RerankerFailed: It failed or is late.
        """
        if self._reranker is None:
            raise NoReranker("this service has no reranker: set KVSTITCH_RERANKER_URL")
        try:
            async with asyncio.timeout(timeout_s):
                return await self._reranker.scores(query, texts)
        except TimeoutError:
            raise RerankerFailed(f"the reranker did not answer within {timeout_s:g} s") from None
        except RerankerError as error:
            raise RerankerFailed(f"the reranker failed: {error}") from error
