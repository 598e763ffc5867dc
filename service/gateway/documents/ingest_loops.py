"""The gateway's background tasks: they make the stages' steps, and the purges that are due.

    indexing      pending documents ── wait
    precompute    purges ── indexed documents ── what is missing ── pinned documents ── wait

A chunk that is computed with a prefix (prefix modes primer and neighbours) is also computed without
one, for prompts that begin with it; that is done when its document is done already.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from retriever import Scope
from service.errors import (
    DatabaseUnavailable,
    DiskFull,
    KvstitchError,
    Overloaded,
    TierUnreached,
    WorkerUnavailable,
)
from service.gateway.documents.background_loop import BackgroundLoop
from service.gateway.documents.chunk_kv import ChunkKV, ChunkKVs
from service.gateway.documents.deletion.purge_queue import PurgeQueue
from service.gateway.documents.indexing_stage import IndexingStage
from service.gateway.documents.jobs.job_store import JobStore
from service.gateway.documents.kv_stage import MAX_CRASHES, STORED_DOCUMENTS, KvStage
from service.gateway.documents.kv_storing import BATCH_CHUNKS, KvStoring, calls
from service.gateway.worker_client.protocol import Worker

logger = logging.getLogger(__name__)

ENOUGH_INDEXED = 256  # documents, among whose chunks prefixes are chosen
POLL_S = 5.0  # for purges of tiers that could not be reached


class IngestLoops:
    """The two loops. They need the worker, and wait for it."""

    def __init__(
        self,
        *,
        stages: tuple[IndexingStage, KvStage],
        storing: KvStoring,
        jobs: JobStore,
        chunks: ChunkKVs,
        worker: Worker,
        purges: PurgeQueue,
        rate: TokenRate,
        pin_check_s: float,
        refresh_gauges: Callable[[], Awaitable[None]],
    ) -> None:
        self._indexing_stage, self._kv_stage = stages
        self._kv = storing
        self._jobs = jobs
        self._chunks = chunks
        self._retriever = chunks.retriever
        self._worker = worker
        self._purges = purges
        self._rate = rate
        self._pin_check_s = pin_check_s
        self._refresh_gauges = refresh_gauges
        self._pins_checked_at = float("-inf")
        self._failures: Counter[tuple[Scope, str]] = Counter()  # of documents that are done
        # The database's log may hold text of documents that are done.
        self._needs_scrub = True
        self._long_ended = False
        self.complete = not chunks.has_copies
        self.indexing = BackgroundLoop("indexing", self._index)
        self.precompute = BackgroundLoop("precompute", self._precompute, POLL_S)
        if (long := self._indexing_stage.long) is not None:
            long.on_end = self._on_long_end

    def _on_long_end(self) -> None:
        self._long_ended = True
        self.indexing.wake()

    def wake_precompute(self) -> None:
        """Work off documents that were indexed, or purges that were added."""
        self.complete = not self._chunks.has_copies
        self.precompute.wake()

    def check_pins(self) -> None:
        """Check soon whether the KV of all pinned documents is stored."""
        self._pins_checked_at = float("-inf")
        self.wake_precompute()

    async def _index(self) -> bool:
        """Index one batch; return False if there was none."""
        indexed = await self._indexing_stage.index_batch()
        if self._long_ended and indexed == "nothing":
            self._long_ended, indexed = False, "all"
        if indexed == "nothing":
            if self._needs_scrub:
                self._needs_scrub = False
                await asyncio.to_thread(self._jobs.scrub)
                self._retriever.give_back_memory()
            return False
        self._needs_scrub = True
        self.wake_precompute()
        if indexed == "all":
            await self._retriever.save()
        await self._refresh_gauges()
        return True

    async def _precompute(self) -> bool:
        """Make the purges that are due, then store the KV of a batch; False if there was none."""
        await self._worker.wait_ready()
        owed: WorkerUnavailable | None = None
        try:
            if await self._purges.run_due():
                self.complete = not self._chunks.has_copies
        except WorkerUnavailable as error:  # TierUnreached, too
            # What one worker or tier still owes is tried again, and keeps no document waiting.
            owed = error
            await self._worker.wait_ready()  # of one worker, it may have ended just now
        if not await self._store_batch():
            if owed is not None:
                raise owed
            return False
        return True

    async def _store_batch(self) -> bool:
        if self._chunks.has_copies and await asyncio.to_thread(self._more_to_come):
            self._rate.end()
            return False
        self._rate.begin()
        if await self._kv_stage.store_batch():
            self.complete = not self._chunks.has_copies
            await self._refresh_gauges()
            return True
        self._rate.end()
        if await self._store_missing():
            return True
        await self._restore_pinned()
        return False

    def _more_to_come(self) -> bool:
        """Return whether documents are being indexed that prefixes should be chosen among."""
        few = len(self._jobs.unfinished.indexed(ENOUGH_INDEXED)) < ENOUGH_INDEXED
        long = self._indexing_stage.long
        without = () if long is None else long.numbers  # nobody waits for these
        return few and bool(self._jobs.unfinished.pending(1, 1, without=without))

    # -- of documents that are done --------------------------------------------------------------

    async def _store_missing(self) -> bool:
        """Store what is missing of documents whose chunks have prefixes; False if nothing is."""
        if self.complete:
            return False
        # One by one after a failure, so that one document does not keep the others back.
        limit = 1 if self._failures else STORED_DOCUMENTS
        documents = await self._retriever.run(self._chunks.prefixes.incomplete, limit)
        try:
            await self._store_all(documents)
        except (Overloaded, DiskFull, TierUnreached, DatabaseUnavailable):
            raise
        except KvstitchError as error:
            self._failures.update(documents)
            for scope, doc_id in documents:
                if self._failures[scope, doc_id] >= MAX_CRASHES:
                    await self._give_up(scope, doc_id, error)
                    del self._failures[scope, doc_id]
            raise
        for document in documents or list(self._failures):
            self._failures.pop(document, None)
        self.complete = not documents
        return bool(documents)

    async def _give_up(self, scope: Scope, doc_id: str, error: KvstitchError) -> None:
        """Leave a document as it is that fails, or kills the worker, every time."""
        logger.warning("document %s is not stored completely: %s", doc_id, error)
        chunk_ids = [chunk.chunk_id for chunk in await self._chunks.of(scope, [doc_id])]
        await self._chunks.note_complete(chunk_ids)

    async def _store_all(self, documents: Sequence[tuple[Scope, str]]) -> None:
        """Store the chunks of documents without a prefix, and with the one chosen for each."""
        chunks: list[ChunkKV] = []
        for scope, doc_id in documents:
            if len(chunks) >= BATCH_CHUNKS:
                break
            chunks += await self._kv.to_store(scope, [doc_id])
        for tenant, part in calls(chunks, lambda chunk: chunk):
            alone = [replace(chunk, copies=[]) for chunk in part if chunk.copies]
            failed = {
                reply.chunk_id: reply.message
                for wanted in (part, alone)
                async for _, reply in self._kv.replies(tenant, wanted)
                if reply.status == "failed"
            }
            for doc_id in sorted({chunk.doc_id for chunk in part if chunk.chunk_id in failed}):
                logger.warning("document %s is not stored completely: %s", doc_id, failed)
            await self._chunks.note_complete([chunk.chunk_id for chunk in part])

    async def _restore_pinned(self) -> None:
        """Compute again what a tier has evicted of pinned documents."""
        if time.monotonic() - self._pins_checked_at < self._pin_check_s:
            return
        for document in await self._retriever.run(self._retriever.catalog.pinned):
            await self._store_all([document])
        self._pins_checked_at = time.monotonic()


RATE_WINDOW_S = 60.0  # what counts as recent
MIN_RATE_S = 0.5  # less is not measured: chunks that were stored already are answered at once
MIN_RATE_TOKENS = 256.0  # nor is a note of a few words, which mostly waits


class TokenRate:
    """How fast KV is stored: tokens per second of the last minute that had some to store."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._added: deque[tuple[float, float]] = deque()  # (when, tokens), the first one the start
        self._known: float | None = None  # until the present run has been measured

    def begin(self) -> None:
        """Note that there is something to compute, unless there was before."""
        if not self._added:
            self._added.append((self._clock(), 0.0))

    def add(self, tokens: float) -> None:
        """Count tokens whose KV was stored."""
        now = self._clock()
        self._added.append((now, tokens))
        while len(self._added) > 2 and now - self._added[1][0] > RATE_WINDOW_S:
            self._added.popleft()

    def end(self) -> None:
        """Note that there is nothing to compute: the time until the next `begin` does not count."""
        self._known = self.per_s
        self._added.clear()

    @property
    def per_s(self) -> float | None:
        """Tokens per second; None if less than MIN_RATE_TOKENS were ever stored in one run."""
        if len(self._added) < 2:
            return self._known
        seconds = self._clock() - self._added[0][0]
        tokens = sum(tokens for _, tokens in list(self._added)[1:])
        measured = seconds >= MIN_RATE_S and tokens >= MIN_RATE_TOKENS
        return tokens / seconds if measured else self._known

    def seconds_for(self, tokens: float) -> float | None:
        """Return how long so many tokens will take; None if that is not known."""
        rate = self.per_s
        return tokens / rate if rate else None
