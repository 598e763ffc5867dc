"""The retriever for coroutines: its blocking calls run in threads.

Searches have threads of their own, so that nothing delays them, and so has embedding documents,
which delays no change.
"""

from __future__ import annotations

import asyncio
import logging
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
    DocumentInfo,
    DocumentPage,
    EmbeddedDocument,
    Filter,
    IngestResult,
    Passage,
    Reranker,
    Retriever,
    SearchMode,
    StoredDocument,
    rerank,
)
from retriever.errors import RetrieverError
from retriever.filters import MATCH_ALL
from retriever.scope import DEFAULT_SCOPE, Scope
from service.errors import DiskFull, InvalidRequest, KvstitchError, WorkerUnavailable
from service.gateway.data_folder import DiskGuard
from service.gateway.retrieval.error_translation import service_error
from service.gateway.retrieval.index_keeper import IndexKeeper
from service.gateway.retrieval.timed_embedder import TimedEmbedder

T = TypeVar("T")
logger = logging.getLogger(__name__)

SEARCH_THREADS = 4
# A reranker gets this many candidates per wanted passage, and at least so many.
RERANK_FACTOR = 4
RERANK_MIN_CANDIDATES = 20


@dataclass(frozen=True)
class SearchQuery:
    """One search for passages.

    Attributes:
        text: What is searched for.
        top_k: Passages wanted.
        scope: Tenant and collection.
        doc_ids: Search only these documents; None: all.
        where: Search only documents whose metadata passes.
        mode: By meaning (dense), by words (sparse), or both.
        rerank: Whether the reranker has the last word on the order.
        min_score: Passages with a lower `score` are left out; None: none are.
    """

    text: str
    top_k: int
    scope: Scope = DEFAULT_SCOPE
    doc_ids: tuple[str, ...] | None = None
    where: Filter = MATCH_ALL
    mode: SearchMode = "dense"
    rerank: bool = False
    min_score: float | None = None


@dataclass(frozen=True)
class RetrievalResult:
    """What a search found.

    Attributes:
        passages: Best first.
        embed_s: Seconds to embed the question.
        retrieve_s: Seconds to search.
        rerank_s: Seconds to rerank.
        warnings: For the client.
        below_floor: Scores of the passages that `min_score` left out, best first.
    """

    passages: list[Passage]
    embed_s: float = 0.0
    retrieve_s: float = 0.0
    rerank_s: float = 0.0
    warnings: tuple[str, ...] = ()
    below_floor: tuple[float, ...] = ()

    def above(self, floor: float | None) -> RetrievalResult:
        """The same without the passages whose score is lower than `floor`."""
        if floor is None:
            return self
        kept = [passage for passage in self.passages if passage.score >= floor]
        below = tuple(passage.score for passage in self.passages if passage.score < floor)
        return replace(self, passages=kept, below_floor=below)


class AsyncRetriever:
    """Documents and passages, for coroutines. Usable once start() has returned.

    Attributes:
        companions: Which other chunks a chunk is precomputed behind. Its calls block.

    Searching has two halves, because every change of threads costs a quarter of a millisecond:
    `find` blocks and is called within `run_blocking`, together with whatever is to be done with
    the passages; `rerank` is a coroutine, for requests that ask for it.
    """

    def __init__(
        self,
        retriever: Retriever,
        embedder: TimedEmbedder,
        reranker: Reranker | None = None,
        *,
        rerank_deadline_s: float = 0.3,
        disk: DiskGuard | None = None,
    ) -> None:
        """Wrap `retriever`.

        Args:
            retriever: Not started.
            embedder: The one that `retriever` uses; its times are reported.
            reranker: Asked by `rerank`; None: the service has none.
            rerank_deadline_s: A reranker that takes longer is ignored.
            disk: Recognises errors of a full disk; None: they are errors like any other.
        """
        self._disk = disk
        self._retriever = retriever
        self.companions = retriever.companions
        self._index_keeper = IndexKeeper(retriever)
        self._embedder = embedder
        self._reranker = reranker
        self._rerank_deadline_s = rerank_deadline_s
        self._search_threads = ThreadPoolExecutor(SEARCH_THREADS, thread_name_prefix="search")
        # One thread: the retriever takes one change at a time.
        self._change_thread = ThreadPoolExecutor(1, thread_name_prefix="change")
        self._embed_thread = ThreadPoolExecutor(1, thread_name_prefix="embed")
        self.started = False

    async def start(self) -> None:
        """Load the embedder, the catalog and the index.

        Raises:
            KvstitchError: One of them cannot be loaded.
        """
        await self._in(self._change_thread, self._retriever.start)
        if self._reranker is not None:
            await self._reranker.start()
        await self._in(self._change_thread, self._index_keeper.look)
        self.started = True

    async def close(self) -> None:
        """Save and close, after the work under way."""
        if self.started:
            self.started = False
            await self._in(self._embed_thread, lambda: None)
            await asyncio.to_thread(self._index_keeper.close)
            try:
                await self.save()
            except KvstitchError as error:  # the next start rebuilds the index from the catalog
                logger.warning("the index was not saved: %s", error)
            await self._in(self._change_thread, self._retriever.close)
            if self._reranker is not None:
                await self._reranker.close()
        self._search_threads.shutdown(wait=False, cancel_futures=True)
        self._change_thread.shutdown(wait=False, cancel_futures=True)
        self._embed_thread.shutdown(wait=False, cancel_futures=True)

    def require(self) -> None:
        """Raise WorkerUnavailable while the index is being loaded."""
        if not self.started:
            raise WorkerUnavailable("the document index is being loaded", retry_after_s=5.0)

    # -- searching -------------------------------------------------------------------------------

    async def run_blocking(self, work: Callable[[], T]) -> T:
        """Run `work` on a search thread; the retriever's errors become the service's."""
        return await self._in(self._search_threads, work)

    def find(self, query: SearchQuery) -> RetrievalResult:
        """The best passages for a query. Blocks: call it within `run_blocking`.

        Returns:
            At most `query.top_k` passages, none below `query.min_score`; or more candidates, of
            any score, if they are to be reranked.

        Raises:
            InvalidRequest: A reranker is asked for and the service has none.
        """
        wanted = query.top_k
        if query.rerank:
            if self._reranker is None:
                raise InvalidRequest(
                    "rerank: this service has no reranker; leave it out, or set "
                    "KVSTITCH_RERANKER_URL",
                    field="rerank",
                )
            wanted = max(RERANK_FACTOR * query.top_k, RERANK_MIN_CANDIDATES)
        doc_filter = None
        if query.doc_ids is not None or query.where != MATCH_ALL:
            doc_filter = DocFilter(query.doc_ids, query.where)
        started = time.perf_counter()
        passages = self._retriever.search(
            query.text, wanted, doc_filter, scope=query.scope, mode=query.mode
        )
        embed_s = 0.0 if query.mode == "sparse" else self._embedder.last_s
        found = RetrievalResult(passages, embed_s, time.perf_counter() - started - embed_s)
        return found if query.rerank else found.above(query.min_score)

    async def rerank(self, query: SearchQuery, found: RetrievalResult) -> RetrievalResult:
        """The reranker's choice of `query.top_k` among the candidates of `find`.

        A reranker that fails or is late changes nothing but adds a warning. `query.min_score` is
        then not applied: it is meant for the reranker's scores, and these are of another kind.
        """
        assert self._reranker is not None, "find() has refused this query"
        started = time.perf_counter()
        done = await rerank(
            self._reranker,
            query.text,
            found.passages,
            query.top_k,
            deadline_s=self._rerank_deadline_s,
        )
        result = replace(found, passages=done.passages, rerank_s=time.perf_counter() - started)
        if done.warning is None:
            return result.above(query.min_score)
        warnings = [done.warning]
        if query.min_score is not None:
            warnings.append(
                "min_score was not applied: it is a floor for the reranker's scores, and there are "
                "none"
            )
        return replace(result, warnings=tuple(warnings))

    def unknown_documents(self, doc_ids: Sequence[str], scope: Scope) -> list[str]:
        """Those of `doc_ids` that are not stored. Blocks: call it within `run_blocking`."""
        return [d for d in doc_ids if self._retriever.get_document(d, scope=scope) is None]

    def document_infos(self, doc_ids: Collection[str], scope: Scope) -> dict[str, DocumentInfo]:
        """Those of `doc_ids` that are stored. Blocks: call it within `run_blocking`."""
        if not doc_ids:
            return {}
        named = DocFilter(tuple(doc_ids))
        page = self._retriever.list_documents(len(doc_ids), None, named, scope=scope)
        return {info.doc_id: info for info in page.documents}

    def has_documents(self, scope: Scope) -> bool:
        """Whether the collection has any. Blocks: call it within `run_blocking`."""
        return self._retriever.counts(scope=scope).documents > 0

    def chunks_of_documents(self, doc_ids: Sequence[str], scope: Scope) -> list[tuple[str, Chunk]]:
        """All chunks of documents, each with its doc_id. Blocks: call it within `run_blocking`."""
        return [(d, c) for d in doc_ids for c in self._retriever.chunks_of(d, scope=scope)]

    # -- changing --------------------------------------------------------------------------------

    async def embed(
        self, documents: Sequence[Document], *, scope: Scope = DEFAULT_SCOPE
    ) -> list[EmbeddedDocument]:
        """Split and embed documents, for `store`. Changes nothing and waits for no change."""
        run = partial(self._retriever.embed, documents, scope=scope)
        return await self._in(self._embed_thread, run)

    async def store(
        self, embedded: Sequence[EmbeddedDocument], *, scope: Scope = DEFAULT_SCOPE
    ) -> list[IngestResult]:
        """Store what `embed` returned for this scope; returns what became of each document.

        Raises:
            DiskFull: There is no room; documents that are stored already are not stored twice.
        """
        run = partial(self._retriever.store, embedded, scope=scope)
        results = await self._in(self._change_thread, run)
        for result in results:
            if result.error is not None and (full := self._disk_full(result.error)) is not None:
                raise full
        return results

    async def delete(self, *doc_ids: str, scope: Scope = DEFAULT_SCOPE) -> list[int]:
        """Delete documents; returns the ids of the chunks that were removed."""
        run = partial(self._retriever.delete, doc_ids, scope=scope)
        return await self._in(self._change_thread, run)

    async def set_pinned(
        self, doc_ids: Sequence[str], pinned: bool, *, scope: Scope = DEFAULT_SCOPE
    ) -> list[str]:
        """Pin or unpin documents; returns the ids of those that exist."""
        run = partial(self._retriever.set_pinned, doc_ids, pinned, scope=scope)
        return await self._in(self._change_thread, run)

    async def change(self, work: Callable[[], T]) -> T:
        """Run `work`, which writes to the catalog, on the thread of changes."""
        return await self._in(self._change_thread, work)

    async def save(self) -> None:
        """Save the index, and overwrite what was removed in every file."""
        await self._in(self._change_thread, self._retriever.purge)
        await self._in(self._change_thread, self._index_keeper.look)

    @property
    def index_recall(self) -> float:
        """Recall of the least exact vector index, as measured when it was built."""
        return self._retriever.index_recall

    # -- looking up ------------------------------------------------------------------------------

    async def get(self, doc_id: str, *, scope: Scope = DEFAULT_SCOPE) -> StoredDocument | None:
        run = partial(self._retriever.get_document, doc_id, scope=scope)
        return await self.run_blocking(run)

    async def page(
        self,
        limit: int,
        cursor: str | None,
        doc_filter: DocFilter | None = None,
        *,
        scope: Scope = DEFAULT_SCOPE,
    ) -> DocumentPage:
        run = partial(self._retriever.list_documents, limit, cursor, doc_filter, scope=scope)
        return await self.run_blocking(run)

    async def chunks_of(self, doc_id: str, *, scope: Scope = DEFAULT_SCOPE) -> list[Chunk]:
        return await self.run_blocking(partial(self._retriever.chunks_of, doc_id, scope=scope))

    async def chunks(self, chunk_ids: Collection[int]) -> list[Chunk]:
        """Those of these chunks that are stored, in any scope, in the order of the ids."""
        return await self.run_blocking(lambda: self._retriever.get_chunks(chunk_ids))

    async def stored_chunks(self, chunk_ids: Collection[int]) -> set[int]:
        """Those of `chunk_ids` that are stored, in any scope."""
        return {chunk.chunk_id for chunk in await self.chunks(chunk_ids)}

    async def counts(self, *, scope: Scope | None = None) -> CorpusCounts:
        """CorpusCounts of a scope; None: of all tenants together."""
        return await self.run_blocking(partial(self._retriever.counts, scope=scope))

    async def pinned(self) -> list[tuple[Scope, str]]:
        """(scope, doc_id) of every pinned document, of all tenants."""
        return await self.run_blocking(self._retriever.pinned)

    async def collections(self, tenant: str = "") -> list[tuple[str, CorpusCounts]]:
        """A tenant's collections that have documents, sorted by name."""
        return await self.run_blocking(partial(self._retriever.collections, tenant))

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        except Exception as error:
            if (full := self._disk_full(error)) is not None:
                raise full from error
            if isinstance(error, RetrieverError):
                raise service_error(error) from error
            raise

    def _disk_full(self, error: Exception) -> DiskFull | None:
        return None if self._disk is None else self._disk.recognise(error)
