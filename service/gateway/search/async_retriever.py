"""The retriever for coroutines: its blocking calls run in threads.

Searches have threads of their own, so that nothing delays them, and so has embedding documents,
which delays no change. Callers reach what they need at `catalog` and `retriever`, within `run` or
`change`:

    info = await retriever.run(retriever.catalog.get, doc_id, scope=scope)
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from kvstitch.retriever import (
    Embedder,
    EndpointEmbedder,
    EndpointReranker,
    LocalEmbedder,
    Reranker,
    Retriever,
)
from kvstitch.retriever.documents import IngestResult
from kvstitch.retriever.embedders import EmbeddingSpace, space_of
from kvstitch.retriever.errors import EmbedderUnsupported, RetrieverError
from kvstitch.retriever.ingest import EmbeddedDocument
from kvstitch.service.errors import DiskFull, KvstitchError, WorkerUnavailable
from kvstitch.service.gateway.data_folder import DiskGuard, not_usable
from kvstitch.service.gateway.search.embedder_advice import DEFAULT, MULTILINGUAL, EmbedderAdvice
from kvstitch.service.gateway.search.search_query import service_error
from kvstitch.service.settings import Settings
from kvstitch.service.shared.lean_import import lean_import
from kvstitch.service.shared.resources import behind_answers, give_back

P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger(__name__)

SEARCH_THREADS = 4
SPLIT_THREADS = 2
GIVE_BACK_S = 1.0
RENEW_AGAIN_S = 60.0


class AsyncRetriever:
    """Documents and passages, for coroutines. It starts and closes what it is given."""

    def __init__(
        self,
        retriever: Retriever,
        reranker: Reranker | None = None,
        *,
        disk: DiskGuard | None = None,
    ) -> None:
        self.retriever = retriever
        self.catalog = retriever.catalog
        self.reranker = reranker
        self.advice = EmbedderAdvice(retriever)
        self._disk = disk
        self._index_keeper = _IndexKeeper(retriever)
        self._search_threads = ThreadPoolExecutor(SEARCH_THREADS, thread_name_prefix="search")
        # One thread: the retriever takes one change at a time.
        self._change_thread = ThreadPoolExecutor(1, thread_name_prefix="change")
        self._embed_thread = ThreadPoolExecutor(1, "embed", initializer=behind_answers)
        self._split_threads = ThreadPoolExecutor(SPLIT_THREADS, "split", initializer=behind_answers)
        self._pools = (
            *(self._search_threads, self._change_thread),
            *(self._embed_thread, self._split_threads),
        )
        self._giving_back: asyncio.TimerHandle | None = None
        self.started = False

    async def start(self) -> None:
        """Load the embedder, the catalog and the index. Raises KvstitchError if one of them cannot
        be loaded."""
        await self.change(self.retriever.start)
        if self.reranker is not None:
            await self.reranker.start()
        await self.change(self._index_keeper.check)
        self.started = True

    async def close(self) -> None:
        """Save and close, after the work under way."""
        if self.started:
            self.started = False
            await self._run_in(self._embed_thread, lambda: None)
            await asyncio.to_thread(self._index_keeper.close)
            try:
                await self.save()
            except KvstitchError as error:  # the next start rebuilds the index from the catalog
                logger.warning("the index was not saved: %s", error)
            await self.change(self.retriever.close)
            if self.reranker is not None:
                await self.reranker.close()
        if self._giving_back is not None:
            self._giving_back.cancel()
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)

    def require(self) -> None:
        """Raise WorkerUnavailable while the index is being loaded."""
        if not self.started:
            raise WorkerUnavailable("the document index is being loaded", retry_after_s=5.0)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` on a search thread; the retriever's errors become the service's."""
        return await self._run_in(self._search_threads, partial(work, *args, **kwargs))

    async def change(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work`, which writes, on the thread of changes; errors as in `run`."""
        return await self._run_in(self._change_thread, partial(work, *args, **kwargs))

    async def embed(self, documents: Sequence[EmbeddedDocument]) -> None:
        """Split and embed documents, for `store`. Changes nothing and waits for no change."""

        def work() -> None:
            self.advice.choose([document.text for document in documents])
            list(self.retriever.embedding.embed(documents))

        await self._run_in(self._embed_thread, work)

    async def split(self, document: EmbeddedDocument) -> None:
        """Split a document whose texts are embedded in parts, for `store`; ends soon if it is
        cancelled."""
        await self._run_in(self._embed_thread, partial(self.advice.choose, [document.text]))
        loop, abandoned = asyncio.get_running_loop(), False

        def work() -> None:
            try:
                self.retriever.embedding.split(document, stopped=lambda: abandoned)
            finally:
                if abandoned and not loop.is_closed():  # what it took is freed only now
                    loop.call_soon_threadsafe(self.give_back_memory)

        try:
            await self._run_in(self._split_threads, work)
        except asyncio.CancelledError:
            abandoned = True
            raise

    async def embed_part(self, document: EmbeddedDocument, start: int, count: int) -> None:
        """Embed so many chunks of what `split` has split, beside what others have embedded."""
        work = partial(self.retriever.embedding.embed_part, document, start, count)
        await self._run_in(self._embed_thread, work)

    def give_back_memory(self) -> None:
        """Give back what documents took, a second from now: what they held is let go by then, and
        others that end meanwhile are given back with it.

        Whoever needs memory meanwhile waits for the C library's lock, so it is not done behind
        answers: a thread that comes last keeps the lock for half a second on a busy core.
        """
        loop = asyncio.get_running_loop()
        if self._giving_back is None:
            self._giving_back = loop.call_later(GIVE_BACK_S, self._give_back, loop)

    def _give_back(self, loop: asyncio.AbstractEventLoop) -> None:
        self._giving_back = None
        loop.run_in_executor(None, give_back)

    async def store(self, embedded: Sequence[EmbeddedDocument]) -> list[IngestResult]:
        """Store what was embedded. Raises DiskFull if there is no room; the next try stores no
        document twice."""
        results = await self.change(lambda: list(map(self.retriever.store, embedded)))
        for result in results:
            if result.error is not None and (full := self._disk_full(result.error)) is not None:
                raise full
        return results

    async def save(self) -> None:
        """Save the index, and overwrite what was removed in every file."""
        await self.change(self.retriever.purge)
        await self.change(self._index_keeper.check)

    async def _run_in(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        except Exception as error:
            if (full := self._disk_full(error)) is not None:
                raise full from error
            if isinstance(error, RetrieverError):
                raise service_error(error) from error
            if (held := not_usable(error)) is not None:
                raise held from error
            raise

    def _disk_full(self, error: Exception) -> DiskFull | None:
        return None if self._disk is None else self._disk.recognise(error)


class _IndexKeeper:
    """Gives large scopes an approximate vector index, beside searches and changes, and has words
    made anew that another release has made, and vectors of another embedder.
    """

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Begin to rebuild indexes if some are overdue. Does not block; one caller at a time."""
        if self._thread is not None and self._thread.is_alive():
            return
        if not self._closing.is_set() and self._retriever.indexes_overdue():
            self._thread = threading.Thread(target=self._rebuild, name="index", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Give up what is under way: the next start begins again."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _rebuild(self) -> None:
        behind_answers()
        while True:
            try:
                if self._retriever.rebuild_indexes(self._closing.is_set):
                    self._retriever.save()
            except (RetrieverError, OSError, MemoryError) as error:
                # What is there is searched further. The next change of documents tries again.
                logger.warning("an index was not rebuilt: %s", error)
            if self._retriever.renewal is None or self._closing.wait(RENEW_AGAIN_S):
                return


def make_embedder(settings: Settings) -> Embedder:
    """Return an embedder behind HTTP if an address is set, else a local one; not started."""
    if settings.embedder_url:
        return EndpointEmbedder(
            settings.embedder_url,
            settings.embedder or "default",
            revision=settings.embedder_revision,
            api_key=settings.embedder_key or None,
        )
    return local_embedder(settings, named_folder(settings))


def local_embedder(settings: Settings, folder: Path | None) -> LocalEmbedder:
    """Return one that runs in this process; not started."""
    return LocalEmbedder(folder, dtype=settings.embedder_dtype, importing=lean_import)


def named_folder(settings: Settings) -> Path | None:
    """Return the folder of the local embedder; None: it is the default one."""
    named = settings.embedder
    return None if named in ("", DEFAULT) and not (named and Path(named).is_dir()) else Path(named)


def multilingual_embedder(settings: Settings) -> Embedder | None:
    """Return the embedder for many languages that was fetched last, started; None: none was."""
    for folder in sorted(settings.model_cache.glob(f"{MULTILINGUAL}-*"))[-1:]:
        made = local_embedder(settings, folder)
        try:
            made.start()
        except EmbedderUnsupported as error:
            logger.warning("%s is not used: %s", folder, error)
        else:
            return made
    return None


def former_embedder(settings: Settings, space: EmbeddingSpace) -> Embedder | None:
    """Return the embedder of a space, started, if it is the default or lies beside models that were
    fetched or beside `embedder`; None: it is not there."""
    beside = settings.model_cache, Path(settings.embedder or settings.model_cache / "none").parent
    for folder in (None, *(place / space.name for place in beside)):
        made = local_embedder(settings, folder)
        try:
            made.start()
        except EmbedderUnsupported:
            continue
        if space_of(made) == space:
            return made
    return None


def make_reranker(settings: Settings) -> Reranker | None:
    """Return a reranker behind HTTP if an address is set, else None; not started."""
    if not settings.reranker_url:
        return None
    return EndpointReranker(
        settings.reranker_url,
        style=settings.reranker_style,
        model=settings.reranker_model or None,
        api_key=settings.reranker_key or None,
    )
