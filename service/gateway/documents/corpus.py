"""The corpus of a gateway: builds the parts of this room, starts and closes them.

jobs.submit ── job store ── indexing stage ── catalog, index ── KV stage ── worker ── done
documents.delete ── purge queue ───────────────────────────────────────────────┘
"""

import asyncio
import contextlib
import shutil
import time

from kvstitch.service.gateway.auth.quotas import Quotas
from kvstitch.service.gateway.data_folder import DiskGuard
from kvstitch.service.gateway.documents.background_loop import BackgroundLoop
from kvstitch.service.gateway.documents.chunk_kv import ChunkKVs
from kvstitch.service.gateway.documents.deletion.deletion_store import DeletionStore
from kvstitch.service.gateway.documents.deletion.kv_expiry import PAUSE_S, KvExpiry
from kvstitch.service.gateway.documents.deletion.purge_queue import CatalogLock, PurgeQueue
from kvstitch.service.gateway.documents.document_service import DocumentService
from kvstitch.service.gateway.documents.ingestion import Ingestion
from kvstitch.service.gateway.documents.job_service import JobService
from kvstitch.service.gateway.documents.jobs.job_store import JobStore
from kvstitch.service.gateway.documents.jobs.spool_folder import SpoolFolder
from kvstitch.service.gateway.documents.membership import OpenWork
from kvstitch.service.gateway.fleet.worker_pool import Worker
from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.gateway.service_database import ServiceDatabase
from kvstitch.service.messages.replies import ModelInfo
from kvstitch.service.settings import Settings

DAY_S = 86_400
PRUNE_PAUSE_S = 3600.0


class Corpus:
    """Between start() and close() its loops work off what was accepted."""

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
        self.spool = SpoolFolder(settings.data_dir / "spool", disk)
        self._store = JobStore(database, self.spool)
        deletions = DeletionStore(database)
        purges = PurgeQueue(deletions, chunks, worker, catalog_lock)
        self.ingestion = Ingestion(self._store, purges, chunks, worker, metrics, settings)
        self.jobs = JobService(
            self._store,
            purges,
            self.ingestion,
            chunks.retriever,
            quotas=quotas,
            disk=disk,
            most_jobs=settings.max_jobs_per_key,
        )
        self.documents = DocumentService(
            self._store, deletions, purges, self.ingestion, chunks.retriever
        )
        self._kv_dir = settings.kv_dir if settings.ssd_tier_gib else None
        self._job_retention_s = settings.job_retention_days * DAY_S
        self._pruning = BackgroundLoop("pruning of jobs", self._prune, PRUNE_PAUSE_S)
        expiry = KvExpiry(settings.kv_ttls, chunks, worker, settings.data_dir / "kv_expiry.json")
        self._expiry = BackgroundLoop("expiry of KV", expiry.step, PAUSE_S)
        self._heard_at: float | None = None
        metrics.database_silence.set_function(
            lambda: 0.0 if self._heard_at is None else time.monotonic() - self._heard_at
        )
        # Indexes are rebuilt in the background, at no event that would be seen here.
        metrics.index_recall.set_function(lambda: chunks.retriever.retriever.index.recall)

    def forget_unaccepted(self) -> None:
        """Forget what a process that died had not accepted; before any request can come."""
        self._store.start()

    def on_heartbeat(self, work: OpenWork) -> None:
        """Take note that the database has answered, and of work that other gateways have left."""
        self._heard_at = time.monotonic()
        if work.pending:
            self.ingestion.indexing.wake()
        if work.indexed or work.purges:
            self.ingestion.wake_precompute()

    def pace(self, model: ModelInfo) -> dict[str, float | None]:
        """Return what storing a token of a document takes, and the room on the KV's disk."""
        pace = self.ingestion.pace
        free = None
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(self._kv_dir).free if self._kv_dir else None
        return {
            "tokens_per_s": pace.storing.per_s(),
            "kv_bytes_per_token": pace.bytes_per_token(model),
            "disk_free_bytes": free,
        }

    async def start(self) -> None:
        """Start the loops, after the retriever; the worker may come later."""
        await self.ingestion.refresh_gauges()
        for loop in (
            self.ingestion.indexing,
            self._pruning,
            self._expiry,
            self.ingestion.precompute,
        ):
            loop.start()

    async def close(self) -> None:
        """Cancel the steps under way; the next start continues with what is left."""
        await self._pruning.close()
        await self._expiry.close()
        await self.ingestion.close()

    async def _prune(self) -> bool:
        """Forget jobs that ended long ago; the loop then waits."""
        if self._job_retention_s:
            before = time.time() - self._job_retention_s
            if await asyncio.to_thread(self._store.prune, before):
                await self.ingestion.refresh_gauges()
        return False
