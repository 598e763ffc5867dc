"""Puts the gateway together and runs its life: the composition root. Knows no route.

start ──┬── supervisor ── worker loads its model ──┐
        └── library loads embedder and index ──────┴── ready
drain ── new requests are refused, open ones finish ── close
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from retriever import Embedder, Retriever
from service.errors import InvalidSetting, KvstitchError
from service.gateway.answers.answer_service import AnswerService
from service.gateway.answers.concurrency_limiter import ConcurrencyLimiter
from service.gateway.answers.preparation import RequestPreparer
from service.gateway.auth.access import Access
from service.gateway.auth.keys import KeyStore
from service.gateway.auth.quotas import Limits, Quotas
from service.gateway.auth.secret_file import own_secret
from service.gateway.corpus.corpus import Corpus
from service.gateway.corpus.indexing_loop import IndexingLoop
from service.gateway.corpus.job_database import JobDatabase
from service.gateway.corpus.job_store import JobStore
from service.gateway.corpus.parsing.parser import DocumentParser
from service.gateway.corpus.parsing.sandbox import FileLimits
from service.gateway.corpus.precompute_loop import PrecomputeLoop
from service.gateway.corpus.purge_queue import PurgeQueue
from service.gateway.corpus.receipt_store import ReceiptStore
from service.gateway.prometheus import GatewayMetrics
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.retrieval.async_retriever import AsyncRetriever, TimedEmbedder
from service.gateway.retrieval.model_factory import make_embedder, make_reranker
from service.gateway.worker_client.client import WorkerClient
from service.gateway.worker_client.supervisor import COMMAND, Supervisor
from service.messages import Stats
from service.settings import Settings
from service.tracing import tracing
from service.worker_settings import MIB

logger = logging.getLogger(__name__)


class Gateway:
    """All parts of one gateway process."""

    def __init__(
        self,
        settings: Settings,
        model_folder: Path,
        *,
        embedder: Embedder | None = None,
        worker_command: Sequence[str] = COMMAND,
        worker_address: str = "",
        heartbeat_timeout_s: float = 10.0,
        restart_backoff_s: tuple[float, float] = (0.5, 30.0),
    ) -> None:
        """`worker_address`: a worker that runs already; else one is started and supervised.

        Raises ModelRefused if the model folder's tokenizer or prompt format cannot be used.
        """
        self.settings = settings
        self.metrics = GatewayMetrics({"data": settings.data_dir, "kv": settings.kv_dir})
        self.tracing = tracing(settings.otlp_endpoint, "gateway")
        self.prompts = PromptBuilder(model_folder, settings)
        self.worker = WorkerClient(
            heartbeat_timeout_s=heartbeat_timeout_s,
            on_stats=self._on_stats,
            on_change=self._on_change,
            on_left=self.metrics.tokens_after_leaving.observe,
        )
        self._address = worker_address
        self._supervisor = Supervisor(
            self.worker,
            lambda address: settings.worker(
                model_folder, address, tenants_secret=own_secret(settings.data_dir)
            ),
            on_refused=self.give_up,
            on_restart=self.metrics.worker_restarts.inc,
            command=worker_command,
            backoff_s=restart_backoff_s,
        )
        timed = TimedEmbedder(embedder or make_embedder(settings))
        retriever = Retriever.in_folder(settings.data_dir, timed, self.prompts.chunking())
        self.retriever = AsyncRetriever(
            retriever,
            timed,
            make_reranker(settings),
            rerank_deadline_s=settings.rerank_deadline_s,
        )
        self.limiter = ConcurrencyLimiter(
            max_running=settings.max_running,
            max_waiting=settings.max_waiting,
            max_waiting_tokens=settings.max_waiting_tokens,
            metrics=self.metrics,
        )
        self._keys = KeyStore(settings.data_dir / "keys.sqlite3")
        self.quotas = Quotas(
            Limits(
                settings.tenant_max_documents,
                settings.tenant_max_bytes,
                settings.tenant_requests_per_minute,
                settings.tenant_tokens_per_minute,
            )
        )
        self.access = Access(self._keys, self.quotas, allow_anonymous=settings.allow_anonymous)
        self._database = JobDatabase(settings.data_dir / "jobs.sqlite3")
        self.corpus = self._corpus()
        self.answers = AnswerService(
            worker=self.worker,
            prompts=self.prompts,
            preparer=RequestPreparer(self.worker, self.retriever, self.prompts, settings),
            limiter=self.limiter,
            metrics=self.metrics,
            tracing=self.tracing,
        )
        self.on_failure: Callable[[], None] = lambda: None  # set by the server: stop serving
        self.failure: str | None = None
        self._loading: asyncio.Task[None] | None = None
        self._lock: IO[str] | None = None

    def _corpus(self) -> Corpus:
        settings = self.settings
        jobs, receipts = JobStore(self._database), ReceiptStore(self._database)
        purges = PurgeQueue(receipts, self.retriever, self.worker, self.prompts)
        limits = FileLimits(
            settings.max_file_pages,
            settings.max_file_chars,
            settings.file_cpu_s,
            settings.file_memory_mib * MIB,
        )
        indexing_loop = IndexingLoop(
            jobs=jobs,
            retriever=self.retriever,
            purges=purges,
            parser=DocumentParser(limits),
            metrics=self.metrics,
            scrub=self._database.scrub,
        )
        precompute_loop = PrecomputeLoop(
            jobs=jobs,
            receipts=receipts,
            retriever=self.retriever,
            worker=self.worker,
            prompts=self.prompts,
            purges=purges,
            pin_check_s=settings.pin_check_s,
            on_done=indexing_loop.count,
        )
        indexing_loop.on_indexed = precompute_loop.wake.set
        return Corpus(
            jobs=jobs,
            receipts=receipts,
            retriever=self.retriever,
            purges=purges,
            quotas=self.quotas,
            indexing=indexing_loop,
            computing=precompute_loop,
        )

    @property
    def worker_pid(self) -> int | None:
        return self._supervisor.pid

    def claim(self) -> None:
        """Take the data folder, for as long as this gateway is open.

        Raises InvalidSetting, also if it would be open to strangers.
        """
        self.tracing.start()
        self._lock = self._lock or _lock(self.settings.data_dir)
        self._keys.start()
        self.access.check_exposure(self.settings.host)

    async def start(self) -> None:
        """Begin loading; `not_ready` tells when it is over. Raises InvalidSetting."""
        self.claim()
        self._database.start()
        if self._address:
            self.worker.connect(self._address)
        else:
            await self._supervisor.start()
        self._loading = asyncio.create_task(self._load())

    async def close(self) -> None:
        """Stop everything; what is left of ingest jobs is resumed at the next start."""
        if self._loading is not None:
            await asyncio.gather(self._loading, return_exceptions=True)
        await self.corpus.close()
        await self._supervisor.stop()
        await self.worker.close()
        await self.retriever.close()
        await asyncio.to_thread(self.tracing.close)
        self._database.close()
        self._keys.close()
        if self._lock is not None:
            self._lock.close()

    def not_ready(self) -> str | None:
        """Why requests are refused now, None if they are served."""
        if self.failure is not None:
            return self.failure
        if self.limiter.draining:
            return "the service is shutting down"
        if self.worker.ready is None:
            return self.worker.reason
        if not self.retriever.started:
            return "the document index is being loaded"
        return None

    async def drain(self) -> None:
        """Refuse new requests; returns when the open ones are done, or the time is up."""
        self.limiter.draining = True
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.drain_timeout_s
        while self.limiter.in_flight and loop.time() < end:
            await asyncio.sleep(0.05)

    def give_up(self, reason: str) -> None:
        """Something that will not pass by itself: stop the service and say why."""
        self.failure = self.failure or reason
        self.on_failure()

    async def _load(self) -> None:
        try:
            await self.retriever.start()
            await self.corpus.start()
        except KvstitchError as error:
            self.give_up(error.message)
        except Exception as error:
            logger.exception("the document index cannot be opened")
            self.give_up(f"the document index cannot be opened: {error}")

    def _on_stats(self, stats: Stats) -> None:
        self.metrics.worker.update(stats.values)

    def _on_change(self, up: bool) -> None:
        self.metrics.worker_up.set(int(up))
        if not up:
            self.metrics.worker.forget()


def _lock(folder: Path) -> IO[str]:
    """Held as long as the file is open. Two gateways on one folder would undo each other's work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "lock", "a+", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise InvalidSetting(f"data_dir {folder} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise InvalidSetting(
            f"another kvstitch serves from {folder}: stop it, or give another --data-dir"
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
