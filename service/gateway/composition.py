"""The composition root: builds the parts of the gateway, starts and stops them.

start ──┬── supervisor starts the worker, which loads its model ──┐
        └── retriever loads embedder and index ───────────────────┴── ready
drain ── new requests are refused, open ones finish ── close
"""

import asyncio
import logging
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from kvstitch.retriever import Embedder, Retriever
from kvstitch.service.errors import InvalidSetting, KvstitchError
from kvstitch.service.gateway.admission import ConcurrencyLimiter
from kvstitch.service.gateway.answers.answer_service import AnswerService
from kvstitch.service.gateway.answers.forms import AnswerForms
from kvstitch.service.gateway.answers.methods import DefaultMethods
from kvstitch.service.gateway.answers.preparation import RequestPreparer
from kvstitch.service.gateway.answers.validation import RequestValidator
from kvstitch.service.gateway.auth.access import Access
from kvstitch.service.gateway.auth.quotas import Limits, Quotas, RateCounters
from kvstitch.service.gateway.data_folder import DiskGuard, lock_folder, make_private
from kvstitch.service.gateway.databases import Databases
from kvstitch.service.gateway.documents.chunk_kv import ChunkKVs
from kvstitch.service.gateway.documents.corpus import Corpus
from kvstitch.service.gateway.fleet.member import WorkerState, count_by_state
from kvstitch.service.gateway.fleet.worker_pool import Worker
from kvstitch.service.gateway.prometheus import GatewayMetrics
from kvstitch.service.gateway.prompts.chunk_prefixes import ChunkPrefixes
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.gateway.search.async_retriever import (
    AsyncRetriever,
    former_embedder,
    make_embedder,
    make_reranker,
    multilingual_embedder,
)
from kvstitch.service.gateway.search.passage_search import PassageSearch
from kvstitch.service.gateway.search.search_service import SearchService
from kvstitch.service.gateway.search.text_calls import EmbeddingService, RerankService
from kvstitch.service.gateway.service_database import ServiceDatabase
from kvstitch.service.gateway.workers import OWN_PROCESSES, ProcessOptions, Workers
from kvstitch.service.grammars.processes import GrammarProcesses
from kvstitch.service.plugins import GatewayPart, IdentityProvider, hooks
from kvstitch.service.settings import Settings, calibration
from kvstitch.service.settings.calibration import Calibration
from kvstitch.service.settings.loading import Reload
from kvstitch.service.shared.tracing import tracing_to

if TYPE_CHECKING:
    from kvstitch.service.gateway.encryption.tenant_keys import TenantKeys

logger = logging.getLogger(__name__)
KEYS_EVERY_S = 5.0


class Gateway:
    """All parts of one gateway process. `embedder` is used instead of the one that the settings
    name; `processes`: how worker processes are started and watched. Raises ModelRefused: the model
    folder's tokenizer or prompt format cannot be used; InvalidSetting: the calibration that is set
    cannot."""

    def __init__(
        self,
        settings: Settings,
        model_folder: Path,
        *,
        embedder: Embedder | None = None,
        processes: ProcessOptions = OWN_PROCESSES,
    ) -> None:
        self._read = settings  # what was read last, without what a calibration says
        calibrated = calibration.find(settings, model_folder)
        self.settings = settings if calibrated is None else calibrated.settings(settings)
        self.failure: str | None = None
        self._loading: asyncio.Task[None] | None = None
        self._watching_keys: asyncio.Task[None] | None = None
        self._lock: IO[str] | None = None
        self.disk = DiskGuard(settings.data_dir)
        self.metrics = GatewayMetrics({"data": settings.data_dir, "kv": settings.kv_dir})
        self._tracing = tracing_to(settings.otlp_endpoint, "gateway")
        self._databases = Databases(self.settings, self.disk)
        self.prompts = PromptBuilder(model_folder, self.settings)
        self._forms = AnswerForms(GrammarProcesses(model_folder / "tokenizer.json"))
        if self.prompts.model in settings.loras:
            raise InvalidSetting(f"lora names an adapter {self.prompts.model}, as the model is")
        self.default_methods = DefaultMethods(settings, calibrated, self.prompts.format)
        self._build_access()
        self._build_workers(model_folder, calibrated, processes)
        self._build_services(embedder)
        self.parts: list[GatewayPart] = [
            part for part in hooks().gateway_part(gateway=self) if part is not None
        ]

    def _build_access(self) -> None:
        """Build keys and quotas: who may use the service, and how much."""
        settings = self.settings
        self._counters = self._rate_counters()
        self._quotas = Quotas(_per_tenant(settings), self._counters)
        self.tokens: IdentityProvider | None = hooks().identity_provider(settings=settings)
        self.access = Access(
            self._databases.keys,
            self._quotas,
            allow_anonymous=settings.allow_anonymous,
            tokens=self.tokens,
        )
        self.limiter = ConcurrencyLimiter(
            max_running=settings.max_running * settings.workers,
            max_waiting=settings.max_waiting,
            max_waiting_tokens=settings.max_waiting_tokens,
            metrics=self.metrics,
            max_per_key=settings.max_in_flight_per_key,
        )

    def _build_workers(
        self, model_folder: Path, calibrated: Calibration | None, processes: ProcessOptions
    ) -> None:
        """Build the workers: processes of this gateway, or those that run by themselves."""
        settings = self.settings
        listed = bool(settings.worker_addresses)
        self._workers = Workers(
            settings,
            processes,
            self.metrics,
            worker_settings=lambda number, address: settings.worker(
                model_folder,
                address,
                number=number,
                tenants_secret=self._databases.tenants_secret(),
                calibration=None if calibrated is None else calibrated.path,
            ),
            on_refused=self.give_up,
            deletions=self._databases.tenants_secret,
            on_count=lambda ready: (
                self.limiter.resize(settings.max_running * ready) if listed else None
            ),
            keys=self._databases.ring,
        )
        own = self._workers.worker
        around: Worker | None = hooks().answering_worker(
            settings=settings, model_folder=model_folder, worker=own
        )
        self.worker = around or own
        count_by_state(self.metrics, self.worker_states)

    def _build_services(self, embedder: Embedder | None) -> None:
        """Build what routes ask for: the documents, answers and searches."""
        settings = self.settings

        def current() -> Settings:
            return self.settings

        retriever = Retriever.in_folder(
            settings.data_dir,
            embedder or make_embedder(settings),
            self.prompts.chunking(),
            exact_up_to=settings.exact_vectors,
            database=self._databases.catalog,
            index=hooks().vector_index(settings=settings, database=self._databases.catalog),
        )
        retriever.former = partial(former_embedder, settings)
        self.retriever = AsyncRetriever(retriever, make_reranker(settings), disk=self.disk)
        named = embedder or settings.embedder or settings.embedder_url or settings.database
        if not named:  # the documents decide; other gateways of a database could not follow
            retriever.follows = True
            self.retriever.advice.multilingual = partial(multilingual_embedder, settings)
        passages = PassageSearch(self.retriever, current)
        prefixes = ChunkPrefixes(self.prompts, retriever.prefix_chunks, settings)
        self.answers = AnswerService(
            worker=self.worker,
            prompts=self.prompts,
            validator=RequestValidator(
                self.worker, self.retriever, self.prompts, self.default_methods, current
            ),
            preparer=RequestPreparer(
                self.worker, passages, self.prompts, prefixes, current, self._forms
            ),
            forms=self._forms,
            limiter=self.limiter,
            metrics=self.metrics,
            tracing=self._tracing,
        )
        top_k = self.prompts.format.top_k
        self.searches = SearchService(
            self.retriever, passages, self.limiter, current, tracing=self._tracing, top_k=top_k
        )
        self.rerankings = RerankService(
            self.retriever, self.limiter, current, self.prompts.tokenizer
        )
        self.embeddings = EmbeddingService(self.retriever, self.limiter, current, self._tracing)
        self.corpus = Corpus(
            database=self._databases.jobs,
            chunks=ChunkKVs(self.retriever, self.prompts, prefixes),
            worker=self.worker,
            quotas=self._quotas,
            metrics=self.metrics,
            settings=settings,
            disk=self.disk,
            catalog_lock=self._databases.catalog_lock,
        )

    @property
    def worker_pid(self) -> int | None:
        return self._workers.first_pid

    @property
    def shared_database(self) -> ServiceDatabase | None:
        """PostgreSQL, which other gateways use as well; None: there are files in the folder."""
        return self._databases.jobs if self._databases.jobs.shared else None

    def worker_states(self) -> list[WorkerState]:
        return self._workers.states()

    def claim(self) -> None:
        """Take the data folder, for as long as this gateway is open. Raises InvalidSetting: another
        gateway uses the folder, strangers could use this one, or a database in it cannot be used;
        DiskFull: there is no room in it."""
        with self.disk.translated():
            self._tracing.start()
            self._lock = self._lock or lock_folder(self.settings.data_dir)
            make_private(self.settings.data_dir, beside=self.settings.kv_dir)
            self._databases.open()
            self.corpus.forget_unaccepted()
        self.access.check_exposure(self.settings.host)

    async def start(self) -> None:
        """Begin loading; `not_ready` tells when it is done. Raises InvalidSetting: As `claim`."""
        self.claim()
        for part in self.parts:
            await part.start()
        await self._counters.start()
        await self._workers.start()
        self._databases.start(self.corpus, self.give_up)
        self._loading = asyncio.create_task(self._load())
        if self._databases.tenant_keys is not None:
            self._watching_keys = asyncio.create_task(self._watch_keys(self._databases.tenant_keys))

    async def close(self) -> None:
        """Stop everything; the next start resumes what is left of ingest jobs."""
        for part in self.parts:
            await part.close()
        if self._watching_keys is not None:
            self._watching_keys.cancel()
            await asyncio.gather(self._watching_keys, return_exceptions=True)
        if self._loading is not None:
            await asyncio.gather(self._loading, return_exceptions=True)
        await self.corpus.close()
        await self._workers.close()
        await self._counters.close()
        if self.tokens is not None:
            await self.tokens.close()
        self.embeddings.close()
        await asyncio.to_thread(self._forms.close)
        await self.retriever.close()
        await asyncio.to_thread(self._tracing.close)
        await self._databases.close()
        if self._lock is not None:
            self._lock.close()

    def not_ready(self) -> str | None:
        """Return why requests are refused now, None if they are served."""
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
        """Refuse new requests; returns when the open ones have ended, or time is up."""
        self.limiter.draining = True
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.drain_timeout_s
        while self.limiter.in_flight and loop.time() < end:
            await asyncio.sleep(0.05)

    async def reload(self, read: Settings) -> Reload:
        """Take over what can be of settings that were read again. Blocks nothing."""
        found = Reload.of(self._read, read)
        if found.changed:
            settings = found.applied(self.settings, read)
            for part in self.parts:
                await part.settings_changed(settings, found.changed, found.need_restart)
            self._read = found.applied(self._read, read)
            self.settings = settings
            self._quotas.per_tenant = _per_tenant(settings)
            self.limiter.limit(settings.max_waiting_tokens, settings.max_in_flight_per_key)
        return found

    def give_up(self, reason: str) -> None:
        """Stop the service for a reason that will not pass by itself; the server polls it."""
        self.failure = self.failure or reason

    def _rate_counters(self) -> RateCounters:
        shared: RateCounters | None = hooks().rate_counters(
            settings=self.settings,
            secret=lambda: self.settings.tenant_secret or self._databases.tenants_secret(),
            metrics=self.metrics,
        )
        return shared or RateCounters()

    async def _watch_keys(self, keys: "TenantKeys") -> None:
        """Follow what the command line and other gateways do to the keys of tenants."""
        while True:
            await asyncio.sleep(KEYS_EVERY_S)
            try:
                await asyncio.to_thread(keys.refresh)
                self._workers.push_keys()
            except Exception:
                logger.exception("the keys of tenants cannot be read again")

    async def _load(self) -> None:
        try:
            await self.retriever.start()
            await self.corpus.start()
        except KvstitchError as error:
            self.give_up(error.message)
        except Exception as error:
            logger.exception("the document index cannot be opened")
            self.give_up(f"the document index cannot be opened: {error}")


def _per_tenant(settings: Settings) -> Limits:
    return Limits(
        settings.tenant_max_documents,
        settings.tenant_max_bytes,
        settings.tenant_requests_per_minute,
        settings.tenant_tokens_per_minute,
    )
