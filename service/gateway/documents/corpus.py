"""Documents in and out: builds the parts of the corpus and runs its loops.

jobs.submit ── job store ── indexing loop ── retriever ── precompute loop ── worker ── done
documents.delete ── purge queue ─────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import time

from service.gateway.auth.quotas import Quotas
from service.gateway.disk_guard import DiskGuard
from service.gateway.documents.background_loop import BackgroundLoop
from service.gateway.documents.catalog_lock import CatalogLock
from service.gateway.documents.corpus_gauges import CorpusGauges
from service.gateway.documents.deletion_store import DeletionStore
from service.gateway.documents.document_service import DocumentService
from service.gateway.documents.indexing_loop import IndexingLoop
from service.gateway.documents.job_service import JobService
from service.gateway.documents.jobs.job_database import JobDatabase
from service.gateway.documents.jobs.job_store import JobStore
from service.gateway.documents.jobs.spool_folder import SpoolFolder
from service.gateway.documents.jobs.webhook_events import EventStore
from service.gateway.documents.membership import Signs
from service.gateway.documents.parsing.parser import DocumentParser
from service.gateway.documents.parsing.sandbox import FileLimits
from service.gateway.documents.precompute_loop import PrecomputeLoop
from service.gateway.documents.purge_queue import PurgeQueue
from service.gateway.documents.token_rate import TokenRate
from service.gateway.documents.webhook_sender import WebhookSender
from service.gateway.prometheus import GatewayMetrics
from service.gateway.prompts.precomputed_behind import PrecomputedBehind
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.retrieval.async_retriever import AsyncRetriever
from service.gateway.worker_client.protocol import Worker
from service.settings import Settings
from service.shared.worker_settings import MIB

DAY_S = 86_400
PRUNE_PAUSE_S = 3600.0


class Corpus:
    """The corpus of one gateway; between start() and close() its loops work off what was accepted.

    Attributes:
        jobs: Accepts documents.
        documents: Lists and deletes them.
        spool: Holds large uploads until they are indexed.
    """

    def __init__(
        self,
        *,
        database: JobDatabase,
        retriever: AsyncRetriever,
        worker: Worker,
        prompts: PromptBuilder,
        behind: PrecomputedBehind,
        quotas: Quotas,
        metrics: GatewayMetrics,
        settings: Settings,
        disk: DiskGuard,
        catalog_lock: CatalogLock,
    ) -> None:
        self.spool = SpoolFolder(settings.data_dir / "spool", disk)
        self._store = JobStore(database, self.spool, with_events=bool(settings.webhook_url))
        self._webhook: WebhookSender | None = None
        if settings.webhook_url:
            self._webhook = WebhookSender(
                EventStore(database), settings.webhook_url, settings.webhook_secret, metrics
            )
        self._job_retention_s = settings.job_retention_days * DAY_S
        self._pruning = BackgroundLoop("pruning of jobs", self._prune, PRUNE_PAUSE_S)
        deletions = DeletionStore(database)
        purges = PurgeQueue(deletions, retriever, worker, prompts, behind, catalog_lock)
        self._gauges = CorpusGauges(self._store, retriever, metrics)
        rate = TokenRate()
        self._precompute = PrecomputeLoop(
            jobs=self._store,
            rate=rate,
            retriever=retriever,
            worker=worker,
            prompts=prompts,
            behind=behind,
            purges=purges,
            gauges=self._gauges,
            pin_check_s=settings.pin_check_s,
            loras=settings.precomputed_loras,
        )
        limits = FileLimits(
            settings.max_file_pages,
            settings.max_file_chars,
            settings.file_cpu_s,
            settings.file_memory_mib * MIB,
        )
        self._indexing = IndexingLoop(
            jobs=self._store,
            retriever=retriever,
            purges=purges,
            parser=DocumentParser(limits),
            precompute=self._precompute,
            gauges=self._gauges,
        )
        self.jobs = JobService(
            jobs=self._store,
            purges=purges,
            quotas=quotas,
            indexing=self._indexing,
            gauges=self._gauges,
            disk=disk,
            rate=rate,
        )
        self.documents = DocumentService(
            retriever=retriever,
            jobs=self._store,
            deletions=deletions,
            purges=purges,
            precompute=self._precompute,
            gauges=self._gauges,
        )

    @property
    def complete(self) -> bool:
        """Whether nothing is left to compute of documents that are done."""
        return self._precompute.complete

    def forget_unaccepted(self) -> None:
        """Forget what a process that died had not accepted; before any request can come."""
        self._store.start()

    def hear(self, signs: Signs) -> None:
        """The database has answered; other gateways may have left work."""
        self._gauges.heard()
        if signs.pending:
            self._indexing.wake()
        if signs.indexed or signs.purges:
            self._precompute.wake()

    async def start(self) -> None:
        """The retriever must have been started; the worker may come later."""
        await self._gauges.refresh()
        self._indexing.start()
        self._pruning.start()
        self._precompute.start()
        if self._webhook is not None:
            self._webhook.start()

    async def close(self) -> None:
        """Cancel the step under way; the next start continues with what is left."""
        if self._webhook is not None:
            await self._webhook.close()
        await self._pruning.close()
        await self._indexing.close()
        await self._precompute.close()

    async def _prune(self) -> bool:
        """Forget jobs that ended long ago; the loop then waits."""
        if self._job_retention_s:
            before = time.time() - self._job_retention_s
            if await asyncio.to_thread(self._store.prune, before):
                await self._gauges.refresh()
        return False
