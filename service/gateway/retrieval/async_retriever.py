"""The retriever behind the event loop: its blocking calls run in threads. Knows no KV or HTTP.

Searches have threads of their own, so that a long ingest does not hold them up.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from retriever import (
    Chunk,
    CorpusCounts,
    DocFilter,
    Document,
    DocumentPage,
    Embedder,
    Filter,
    IngestResult,
    Passage,
    Reranker,
    Retriever,
    SearchMode,
    StoredDocument,
    rerank,
)
from retriever.embedders.base import Vectors
from retriever.errors import InvalidDocument, InvalidQuery, RetrieverError
from retriever.filters import MATCH_ALL
from retriever.scope import DEFAULT_SCOPE, Scope
from service.errors import InvalidRequest, KvstitchError, WorkerUnavailable

T = TypeVar("T")

SEARCH_THREADS = 4

# How many passages are reranked for one that is wanted, and at least.
RERANK_FACTOR = 4
RERANK_AT_LEAST = 20


@dataclass(frozen=True)
class RetrievalResult:
    """Passages, best first, and the seconds it took to embed the question, search and rerank."""

    passages: list[Passage]
    embed_s: float
    retrieve_s: float
    rerank_s: float = 0.0
    warnings: tuple[str, ...] = ()


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
        return float(getattr(self._local, "last_s", 0.0))

    def start(self) -> None:
        self._inner.start()

    def close(self) -> None:
        self._inner.close()

    def embed(self, texts: Sequence[str]) -> Vectors:
        started = time.perf_counter()
        try:
            return self._inner.embed(texts)
        finally:
            self._local.last_s = time.perf_counter() - started


class AsyncRetriever:
    """Documents and passages, for coroutines. Usable once start() has returned."""

    def __init__(
        self,
        retriever: Retriever,
        embedder: TimedEmbedder,
        reranker: Reranker | None = None,
        *,
        rerank_deadline_s: float = 0.3,
    ) -> None:
        """`embedder` is the retriever's own. A reranker that is late is done without."""
        self._retriever = retriever
        self._embedder = embedder
        self._reranker = reranker
        self._rerank_deadline_s = rerank_deadline_s
        self._searching = ThreadPoolExecutor(SEARCH_THREADS, thread_name_prefix="search")
        self._changing = ThreadPoolExecutor(1, thread_name_prefix="ingest")
        self.started = False

    async def start(self) -> None:
        """Load the embedder, the catalog and the index. Raises KvstitchError."""
        await self._in(self._changing, self._retriever.start)
        if self._reranker is not None:
            await self._reranker.start()
        self.started = True

    async def close(self) -> None:
        """Save and close; waits for what is under way."""
        if self.started:
            self.started = False
            await self.save()
            await self._in(self._changing, self._retriever.close)
            if self._reranker is not None:
                await self._reranker.close()
        self._searching.shutdown(wait=False, cancel_futures=True)
        self._changing.shutdown(wait=False, cancel_futures=True)

    def require(self) -> None:
        """Raises WorkerUnavailable while the index is being loaded."""
        if not self.started:
            raise WorkerUnavailable("the document index is being loaded", retry_after_s=5.0)

    async def search(
        self,
        query: str,
        top_k: int,
        doc_ids: Sequence[str] | None,
        where: Filter = MATCH_ALL,
        *,
        scope: Scope = DEFAULT_SCOPE,
        mode: SearchMode = "dense",
        reranked: bool = False,
        then: Callable[[RetrievalResult], T],
    ) -> T:
        """What `then` makes of the best `top_k` passages of a scope, among the documents `doc_ids`
        if given, of those whose metadata passes `where`; on the thread that found them, because
        every change of threads costs a quarter of a millisecond. Raises InvalidRequest, and what
        `then` raises."""
        if reranked and self._reranker is None:
            raise InvalidRequest(
                "rerank: this service has no reranker; leave it out, or set KVSTITCH_RERANKER_URL",
                field="rerank",
            )
        doc_filter = None
        if doc_ids is not None or where != MATCH_ALL:
            doc_filter = DocFilter(None if doc_ids is None else tuple(doc_ids), where)
        wanted = max(RERANK_FACTOR * top_k, RERANK_AT_LEAST) if reranked else top_k

        def run() -> RetrievalResult:
            started = time.perf_counter()
            passages = self._retriever.search(query, wanted, doc_filter, scope=scope, mode=mode)
            embed_s = 0.0 if mode == "sparse" else self._embedder.last_s
            return RetrievalResult(passages, embed_s, time.perf_counter() - started - embed_s)

        if not reranked:
            return await self.in_search_thread(lambda: then(run()))
        found = await self._reranked(query, top_k, await self.in_search_thread(run))
        return await self.in_search_thread(lambda: then(found))

    async def _reranked(self, query: str, top_k: int, found: RetrievalResult) -> RetrievalResult:
        assert self._reranker is not None
        started = time.perf_counter()
        done = await rerank(
            self._reranker, query, found.passages, top_k, deadline_s=self._rerank_deadline_s
        )
        return replace(
            found,
            passages=done.passages,
            rerank_s=time.perf_counter() - started,
            warnings=() if done.warning is None else (done.warning,),
        )

    async def in_search_thread(self, run: Callable[[], T]) -> T:
        """Short work that must not hold up the event loop."""
        return await self._in(self._searching, run)

    async def unknown(self, doc_ids: Sequence[str], *, scope: Scope = DEFAULT_SCOPE) -> list[str]:
        """Those of `doc_ids` that are not stored."""

        def run() -> list[str]:
            return [d for d in doc_ids if self._retriever.get_document(d, scope=scope) is None]

        return await self.in_search_thread(run)

    async def ingest(
        self, documents: Sequence[Document], *, scope: Scope = DEFAULT_SCOPE
    ) -> list[IngestResult]:
        run = partial(self._retriever.ingest, documents, scope=scope)
        return await self._in(self._changing, run)

    async def delete(self, *doc_ids: str, scope: Scope = DEFAULT_SCOPE) -> list[int]:
        """The ids of the chunks that were removed."""
        return await self._in(self._changing, partial(self._retriever.delete, doc_ids, scope=scope))

    async def set_pinned(
        self, doc_ids: Sequence[str], pinned: bool, *, scope: Scope = DEFAULT_SCOPE
    ) -> list[str]:
        """The ids of the documents that were found, and are now pinned or not."""
        run = partial(self._retriever.set_pinned, doc_ids, pinned, scope=scope)
        return await self._in(self._changing, run)

    async def save(self) -> None:
        """Save the index, and leave nothing of what was removed in any file."""
        await self._in(self._changing, self._retriever.purge)

    async def get(self, doc_id: str, *, scope: Scope = DEFAULT_SCOPE) -> StoredDocument | None:
        run = partial(self._retriever.get_document, doc_id, scope=scope)
        return await self.in_search_thread(run)

    async def page(
        self,
        limit: int,
        cursor: str | None,
        doc_filter: DocFilter | None = None,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> DocumentPage:
        run = partial(self._retriever.list_documents, limit, cursor, doc_filter, scope=scope)
        return await self.in_search_thread(run)

    async def chunks_of(self, doc_id: str, *, scope: Scope = DEFAULT_SCOPE) -> list[Chunk]:
        return await self.in_search_thread(partial(self._retriever.chunks_of, doc_id, scope=scope))

    async def alive(self, chunk_ids: Collection[int]) -> set[int]:
        """Those of `chunk_ids` that are stored, in any scope."""
        chunks = await self.in_search_thread(lambda: self._retriever.get_chunks(chunk_ids))
        return {chunk.chunk_id for chunk in chunks}

    async def counts(self, *, scope: Scope | None = None) -> CorpusCounts:
        """Of a scope; None: of all tenants together."""
        return await self.in_search_thread(partial(self._retriever.counts, scope=scope))

    async def pinned(self) -> list[tuple[Scope, str]]:
        """(scope, doc_id) of all pinned documents, of all tenants."""
        return await self.in_search_thread(self._retriever.pinned)

    async def collections(self, tenant: str = "") -> list[tuple[str, CorpusCounts]]:
        """A tenant's collections that have documents, by name."""
        return await self.in_search_thread(partial(self._retriever.collections, tenant))

    async def _in(self, pool: ThreadPoolExecutor, run: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, run)
        except (InvalidDocument, InvalidQuery) as error:
            raise InvalidRequest(str(error)) from error
        except RetrieverError as error:
            raise KvstitchError(f"the document index failed: {error}") from error
