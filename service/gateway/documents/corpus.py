"""The corpus of a gateway: builds the parts of this room and runs their loops.

jobs.submit ── job store ── indexing stage ── catalog, index ── KV stage ── worker ── done
documents.delete ── purge queue ───────────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from service.gateway.auth.quotas import Quotas
from service.gateway.data_folder import DiskGuard
from service.gateway.documents.background_loop import BackgroundLoop
from service.gateway.documents.chunk_kv import ChunkKVs
from service.gateway.documents.deletion.deletion_store import DeletionStore
from service.gateway.documents.deletion.kv_expiry import PAUSE_S, KvExpiry
from service.gateway.documents.deletion.purge_queue import CatalogLock, PurgeQueue
from service.gateway.documents.document_service import DocumentService
from service.gateway.documents.indexing_stage import IndexingStage
from service.gateway.documents.ingest_loops import IngestLoops, TokenRate
from service.gateway.documents.job_service import JobService
from service.gateway.documents.jobs.job_store import JobStore
from service.gateway.documents.jobs.spool_folder import SpoolFolder
from service.gateway.documents.kv_stage import KvStage
from service.gateway.documents.kv_storing import KvStoring
from service.gateway.documents.membership import OpenWork
from service.gateway.documents.parsing.parsed_file import ParseWarning
from service.gateway.documents.parsing.parser import FileLimits
from service.gateway.documents.stored_size import StoredSize
from service.gateway.prometheus import GatewayMetrics
from service.gateway.service_database import ServiceDatabase
from service.gateway.worker_client.protocol import Worker
from service.messages.replies import ModelInfo, Precomputed
from service.settings import Settings
from service.shared.metrics import JOB_STATES

DAY_S = 86_400
PRUNE_PAUSE_S = 3600.0


class Corpus:
    """The corpus of one gateway; between start() and close() its loops work off what was
    accepted."""

    def __init__(
        self,
        *,
        database: ServiceDatabase,
        chunks: ChunkKVs,
        worker: Worker,
        quotas: Quotas,
        metrics: GatewayMetrics,
        settings: Settings,
        disk: DiskGuard,
        catalog_lock: CatalogLock,
    ) -> None:
        retriever = self._retriever = chunks.retriever
        self.spool = SpoolFolder(settings.data_dir / "spool", disk)
        self._store = JobStore(database, self.spool)
        self._metrics = metrics
        self._job_retention_s = settings.job_retention_days * DAY_S
        self._pruning = BackgroundLoop("pruning of jobs", self._prune, PRUNE_PAUSE_S)
        expiry = KvExpiry(settings.kv_ttls, chunks, worker, settings.data_dir / "kv_expiry.json")
        self._expiry = BackgroundLoop("expiry of KV", expiry.step, PAUSE_S)
        deletions = DeletionStore(database)
        purges = PurgeQueue(deletions, chunks, worker, catalog_lock)
        rate = self._rate = TokenRate()
        copies = (1 + chunks.has_copies) * (1 + len(settings.precomputed_loras))
        self._size = StoredSize(copies)
        queue = self._store.unfinished
        storing = KvStoring(
            worker, chunks, purges, loras=settings.precomputed_loras, on_reply=self._count_stored
        )
        self._indexing = IndexingStage(
            queue, retriever, purges, FileLimits.of(settings),
            on_warnings=self._count_warnings, aside=True,
        )  # fmt: skip
        stages = self._indexing, KvStage(queue, chunks, storing)
        self._loops = IngestLoops(
            stages=stages,
            storing=storing,
            jobs=self._store,
            chunks=chunks,
            worker=worker,
            purges=purges,
            rate=rate,
            pin_check_s=settings.pin_check_s,
            refresh_gauges=self.refresh_gauges,
        )  # fmt: skip
        self.jobs = JobService(
            jobs=self._store,
            purges=purges,
            quotas=quotas,
            wake=self._loops.indexing.wake,
            refresh_gauges=self.refresh_gauges,
            disk=disk,
            rate=rate,
            stages=stages,
            retriever=retriever,
        )
        self.documents = DocumentService(
            retriever, self._store, deletions, purges, self._loops, self.refresh_gauges
        )
        self._heard_at: float | None = None
        metrics.database_silence.set_function(self._silence_s)
        # Indexes are rebuilt in the background, at no event that would be seen here.
        metrics.index_recall.set_function(lambda: retriever.retriever.index.recall)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to compute of documents that are done."""
        return self._loops.complete

    def forget_unaccepted(self) -> None:
        """Forget what a process that died had not accepted; before any request can come."""
        self._store.start()

    def on_heartbeat(self, work: OpenWork) -> None:
        """Take note that the database has answered, and of work that other gateways have left."""
        self._heard_at = time.monotonic()
        if work.pending:
            self._loops.indexing.wake()
        if work.indexed or work.purges:
            self._loops.wake_precompute()

    def pace(self, model: ModelInfo) -> dict[str, float | None]:
        """Return what storing a token of a document takes."""
        return {
            "tokens_per_s": self._rate.per_s,
            "kv_bytes_per_token": self._size.bytes_per_token(model),
        }

    def _count_stored(self, reply: Precomputed, lora: str, tokens: float) -> None:
        self._rate.add(tokens)
        self._size.add(reply, tokens)

    def _count_warnings(self, warnings: Sequence[ParseWarning]) -> None:
        for warning in warnings:
            self._metrics.document_warnings.labels(warning.code).inc(warning.count)

    async def refresh_gauges(self) -> None:
        """Count anew, after documents or jobs have changed."""
        counts = await self._retriever.run(self._retriever.catalog.counts)
        self._metrics.documents.set(counts.documents)
        self._metrics.chunks.set(counts.chunks)
        states = await asyncio.to_thread(self._store.states)
        for state in JOB_STATES:
            self._metrics.jobs.labels(state).set(states.get(state, 0))

    async def start(self) -> None:
        """Start the loops, after the retriever; the worker may come later."""
        await self.refresh_gauges()
        self._loops.indexing.start()
        self._pruning.start()
        self._expiry.start()
        self._loops.precompute.start()

    async def close(self) -> None:
        """Cancel the step under way; the next start continues with what is left."""
        await self._pruning.close()
        await self._expiry.close()
        await self._loops.indexing.close()
        await self._indexing.close()
        await self._loops.precompute.close()

    async def _prune(self) -> bool:
        """Forget jobs that ended long ago; the loop then waits."""
        if self._job_retention_s:
            before = time.time() - self._job_retention_s
            if await asyncio.to_thread(self._store.prune, before):
                await self.refresh_gauges()
        return False

    def _silence_s(self) -> float:
        return 0.0 if self._heard_at is None else time.monotonic() - self._heard_at
