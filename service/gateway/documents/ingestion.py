"""The gateway's ingestion: two loops that make the stages' steps, and the purges that are due.

    indexing      pending documents ── wait
    precompute    purges ── indexed documents ── what is missing ── pinned documents ── wait

A chunk that is computed with a prefix (prefix modes primer and neighbours) is also computed without
one, for prompts that begin with it; that is done when its document is done already.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from kvstitch.retriever import Scope
from kvstitch.service.errors import (
    DatabaseUnavailable,
    DiskFull,
    KvstitchError,
    Overloaded,
    TierUnreached,
    WorkerUnavailable,
)
from kvstitch.service.gateway.documents.background_loop import BackgroundLoop
from kvstitch.service.gateway.documents.chunk_kv import ChunkKV, ChunkKVs
from kvstitch.service.gateway.documents.deletion.purge_queue import PurgeQueue
from kvstitch.service.gateway.documents.indexing_stage import IndexingStage
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.gateway.documents.jobs.job_store import JobStore
from kvstitch.service.gateway.documents.kv_stage import (
    BATCH_CHUNKS,
    MAX_CRASHES,
    STORED_DOCUMENTS,
    KvStage,
    calls,
)
from kvstitch.service.gateway.documents.pace import Pace, Seconds, WorkAhead
from kvstitch.service.gateway.documents.parsing.parsed_file import ParseWarning
from kvstitch.service.gateway.documents.parsing.parser import FileLimits
from kvstitch.service.gateway.fleet.worker_pool import Worker
from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.settings import Settings
from kvstitch.service.shared.metrics import JOB_STATES

logger = logging.getLogger(__name__)

ENOUGH_INDEXED = 256  # documents, among whose chunks prefixes are chosen
POLL_S = 5.0  # for purges of tiers that could not be reached


class Ingestion:
    """Works off what was accepted. The loop of `precompute` needs the worker, and waits for it."""

    def __init__(
        self,
        jobs: JobStore,
        purges: PurgeQueue,
        chunks: ChunkKVs,
        worker: Worker,
        metrics: GatewayMetrics,
        settings: Settings,
    ) -> None:
        self._jobs = jobs
        self._purges = purges
        self._chunks = chunks
        self._retriever = chunks.retriever
        self._worker = worker
        self._metrics = metrics
        loras = settings.precomputed_loras
        self.pace = Pace((1 + chunks.has_copies) * (1 + len(loras)))
        self.stage = IndexingStage(
            jobs, chunks.retriever, purges, FileLimits.of(settings),
            on_indexed=self._count_indexed, aside=True,
        )  # fmt: skip
        self.stage.long.on_end = self._on_long_end
        self._kv = KvStage(jobs, worker, chunks, purges, loras=loras, on_reply=self.pace.add)
        self._pin_check_s = settings.pin_check_s
        self._pins_checked_at = float("-inf")
        self._failures: Counter[tuple[Scope, str]] = Counter()  # of documents that are done
        # The database's log may hold text of documents that are done.
        self._needs_scrub = True
        self._long_ended = False
        # Whether nothing is left to compute of documents that are done.
        self.complete = not chunks.has_copies
        self.indexing = BackgroundLoop("indexing", self._index)
        self.precompute = BackgroundLoop("precompute", self._precompute, POLL_S)

    async def close(self) -> None:
        """Cancel the step under way; the next start continues with what is left."""
        await self.indexing.close()
        await self.stage.long.close()
        await self.precompute.close()

    def wake_precompute(self) -> None:
        """Work off documents that were indexed, or purges that were added."""
        self.complete = not self._chunks.has_copies
        self.precompute.wake()

    def check_pins(self) -> None:
        """Check soon whether the KV of all pinned documents is stored."""
        self._pins_checked_at = float("-inf")
        self.wake_precompute()

    def time_for(self, ahead: WorkAhead, aside: float = 0.0) -> Seconds | None:
        """Return how long such work takes, without so many bytes that are indexed aside, and what
        is stored already of documents that are not done."""
        tokens = ahead.tokens - self._kv.stored_until(ahead.last)
        new = ahead.new_bytes - aside
        return self.pace.time_for(replace(ahead, tokens=max(0.0, tokens), new_bytes=max(0.0, new)))

    @property
    def waits_for(self) -> str | None:
        """Why no KV can be computed; None if it can."""
        return None if self._worker.ready else f"the worker is not ready: {self._worker.reason}"

    async def cancel(self, job_id: str, indexed: Sequence[tuple[Scope, str]]) -> None:
        """End what is being done for a job, as `KvStage.cancel`; a batch is indexed without those
        of its documents that were cancelled."""
        self.stage.long.cancel(job_id)
        await self._kv.cancel(job_id, indexed)

    async def refresh_gauges(self) -> None:
        """Count anew, after documents or jobs have changed."""
        counts = await self._retriever.run(self._retriever.catalog.counts)
        self._metrics.documents.set(counts.documents)
        self._metrics.chunks.set(counts.chunks)
        states = await asyncio.to_thread(self._jobs.states)
        for state in JOB_STATES:
            self._metrics.jobs.labels(state).set(states.get(state, 0))

    def _count_indexed(
        self, items: Sequence[IngestDocument], warnings: Sequence[ParseWarning]
    ) -> None:
        for warning in warnings:
            self._metrics.document_warnings.labels(warning.code).inc(warning.count)
        for item in items:
            self.pace.indexed(item.size, item.change, item.tokens, known=item.known)

    def _on_long_end(self) -> None:
        self._long_ended = True
        self.indexing.wake()

    async def _index(self) -> bool:
        """Index one batch; return False if there was none."""
        self.pace.indexing.begin()
        indexed = await self.stage.index_batch()
        if self._long_ended and indexed == "nothing":
            self._long_ended, indexed = False, "all"
        if indexed == "nothing":
            self.pace.end_indexing()
            if self._needs_scrub:
                self._needs_scrub = False
                await asyncio.to_thread(self._jobs.database.scrub)
                self._retriever.give_back_memory()
            return False
        self._needs_scrub = True
        self.wake_precompute()
        if indexed == "all":
            await self._retriever.save()
        await self.refresh_gauges()
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
            self.pace.storing.end()
            return False
        self.pace.storing.begin()
        if await self._kv.store_batch():
            self.complete = not self._chunks.has_copies
            await self.refresh_gauges()
            return True
        self.pace.storing.end()
        if await self._store_missing():
            return True
        await self._restore_pinned()
        return False

    def _more_to_come(self) -> bool:
        """Return whether documents are being indexed that prefixes should be chosen among; nobody
        waits for those that take long."""
        few = len(self._jobs.indexed(ENOUGH_INDEXED)) < ENOUGH_INDEXED
        return few and bool(self._jobs.pending(1, 1, without=self.stage.long.numbers))

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
                    # It fails, or kills the worker, every time: it stays as it is.
                    logger.warning("document %s is not stored completely: %s", doc_id, error)
                    chunk_ids = [c.chunk_id for c in await self._chunks.of(scope, [doc_id])]
                    await self._chunks.note_stored(chunk_ids, complete=True)
                    del self._failures[scope, doc_id]
            raise
        for document in documents or list(self._failures):
            self._failures.pop(document, None)
        self.complete = not documents
        return bool(documents)

    async def _store_all(self, documents: Sequence[tuple[Scope, str]]) -> None:
        """Store the chunks of documents without a prefix, and with the one chosen for each."""
        chunks: list[ChunkKV] = []
        for scope, doc_id in documents:
            if len(chunks) >= BATCH_CHUNKS:
                break
            chunks += await self._kv.to_store(scope, [doc_id])
        for tenant, part in calls(chunks, lambda chunk: chunk):
            failed = {
                reply.chunk_id: reply.message
                async for _, reply in self._kv.replies(tenant, part, complete=True)
                if reply.status == "failed"
            }
            for doc_id in sorted({chunk.doc_id for chunk in part if chunk.chunk_id in failed}):
                logger.warning("document %s is not stored completely: %s", doc_id, failed)
            await self._chunks.note_stored([chunk.chunk_id for chunk in part], complete=True)

    async def _restore_pinned(self) -> None:
        """Compute again what a tier has evicted of pinned documents."""
        if time.monotonic() - self._pins_checked_at < self._pin_check_s:
            return
        for document in await self._retriever.run(self._retriever.catalog.pinned):
            await self._store_all([document])
        self._pins_checked_at = time.monotonic()
