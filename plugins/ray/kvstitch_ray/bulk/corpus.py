"""The gateway's ingest as a library: databases, worker process and prompts of one actor.

Its retriever only stores: gateways search its catalog, and follow what it did.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvstitch.retriever import ChunkSettings, Embedder, Retriever, Scope
from kvstitch.retriever.catalog.catalog import Catalog
from kvstitch.retriever.catalog.tables import catalog_database
from kvstitch.retriever.documents import CatalogState, IngestResult
from kvstitch.retriever.embedders import Vectors, space_of
from kvstitch.retriever.index.vector_index import VectorIndex
from kvstitch.retriever.index.vector_search import VectorSearch
from kvstitch.retriever.index_mirror import IndexMirror
from kvstitch.retriever.sql.database import Database
from kvstitch.service.errors import InvalidSetting, ModelRefused
from kvstitch.service.gateway.databases import shared_secret
from kvstitch.service.gateway.documents.chunk_kv import ChunkKVs
from kvstitch.service.gateway.documents.deletion.deletion_store import DeletionStore
from kvstitch.service.gateway.documents.deletion.purge_queue import CatalogLock, PurgeQueue
from kvstitch.service.gateway.documents.indexing_stage import IndexingStage
from kvstitch.service.gateway.documents.jobs.document_queue import record_sizes
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.gateway.documents.kv_stage import KvStage
from kvstitch.service.gateway.documents.membership import Heartbeat, Membership, OpenWork
from kvstitch.service.gateway.documents.parsing.parser import FileLimits
from kvstitch.service.gateway.prompts.chunk_prefixes import ChunkPrefixes
from kvstitch.service.gateway.prompts.prompt_builder import PromptBuilder
from kvstitch.service.gateway.search.async_retriever import AsyncRetriever, make_embedder
from kvstitch.service.gateway.service_database import shared_database
from kvstitch.service.gateway.worker_client.client import WorkerClient
from kvstitch.service.gateway.worker_client.supervisor import COMMAND, Supervisor
from kvstitch.service.plugins import hooks
from kvstitch.service.settings import Settings
from kvstitch.service.settings.calibration import calibrated
from kvstitch.service.shared.worker_settings import WorkerSettings
from kvstitch_ray.bulk.ranges import RangeQueue


def storing_retriever(
    database: Database,
    embedder: Embedder,
    chunking: ChunkSettings,
    *,
    index: VectorSearch | None = None,
) -> Retriever:
    """Return a retriever for a catalog that others search; an `index` in its database gets the
    vectors of what is stored."""
    catalog, held = Catalog(database), VectorIndex() if index is None else index
    mirror = _OwnChanges(catalog, held, embedder, None)
    mirror.index_in_database = index
    return Retriever(catalog, held, embedder, chunking, mirror=mirror)


class _OwnChanges(IndexMirror):
    """Follows nobody, and holds nothing that others could search."""

    index_in_database: VectorSearch | None = None

    def start(self) -> str | None:
        if self.index_in_database is not None:
            self.index_in_database.reset(space_of(self.embedder).dim)
        return None

    @property
    def current(self) -> bool:
        return True

    def catch_up(self) -> None:
        pass

    def apply(self, done: IngestResult, vectors: Vectors, scope: Scope) -> None:
        if self.index_in_database is not None and done.status != "unchanged":
            ids = [chunk.chunk_id for chunk in done.chunks]
            self.index_in_database.replace(done.removed_chunk_ids, ids, vectors, scope=scope)

    def record(self, state: CatalogState) -> None:
        pass

    def save(self) -> None:
        pass


CONNECTIONS = 4  # of each of two pools
READY_S = 600.0  # large models load for minutes
# Pauses after which documents are tried again that the tiers refused, all of them.
WAIT_AGAIN_S = (1.0, 4.0, 16.0)


def check(settings: Any, prompts: PromptBuilder) -> None:
    """Refuse settings with which bulk cannot do what the gateways need."""
    if not settings.database:
        raise InvalidSetting(
            "bulk needs the gateways' PostgreSQL: give --database, or set KVSTITCH_DATABASE"
        )
    if not settings.redis_url and not settings.s3_url:
        raise InvalidSetting(
            "bulk needs a KV tier that the gateways share: give --redis or --s3 as they have it"
        )
    if settings.encrypted:
        raise InvalidSetting(
            "bulk does not encrypt: ingest through a gateway, or unset encryption_key_file "
            "(KVSTITCH_ENCRYPTION_KEY_FILE), encryption_key and encryption_kms everywhere"
        )
    written = [name for name in settings.write_tiers.split(",") if name]
    if written and not {"redis", "s3"} & set(written):
        raise InvalidSetting(f"write_tiers = {settings.write_tiers!r} names no tier that is shared")
    if prompts.prefix_mode == "neighbours":
        raise InvalidSetting(
            "bulk has no index to find neighbours in: ingest through a gateway, or serve with "
            "prefix_mode primer"
        )


def worker_settings(made: WorkerSettings) -> WorkerSettings:
    """Return the settings of a worker that only precomputes, into the tiers that others share."""
    return replace(
        made,
        kv_dir="",
        memory_tier_bytes=0,
        write_through=True,
        prefix_cache=False,
        max_running=1,
        draft_tokens=0,
        prefill_graphs=False,
        gate_sample=0.0,
        workers=1,
        number=0,
    )


class BulkCorpus:
    """Between start() and close() documents can be ingested."""

    def __init__(
        self, settings: Settings, model_folder: Path, *, worker_command: Sequence[str] = COMMAND
    ) -> None:
        """Nothing is opened."""
        settings, self._calibration = calibrated(settings, model_folder)
        self.settings = settings
        self._prompts = PromptBuilder(model_folder, settings)
        check(settings, self._prompts)
        self._model_folder = model_folder
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"
        self._catalog = catalog_database(settings.database, connections=CONNECTIONS)
        self._jobs = shared_database(settings.database, self.owner, connections=CONNECTIONS)
        index = hooks().vector_index(settings=settings, database=self._catalog)
        retriever = storing_retriever(
            self._catalog, make_embedder(settings), self._prompts.chunking(), index=index
        )
        self._retriever = AsyncRetriever(retriever)
        self._worker = WorkerClient()
        prefixes = ChunkPrefixes(self._prompts, retriever.prefix_chunks, settings)
        self._chunks = ChunkKVs(self._retriever, self._prompts, prefixes)
        self._purges = PurgeQueue(
            DeletionStore(self._jobs), self._chunks, self._worker, CatalogLock(self._jobs)
        )
        self._tenants_secret = ""
        self._supervisor = Supervisor(
            self._worker, self._worker_settings, on_refused=self._refuse, command=worker_command
        )
        self._refusal: asyncio.Future[str] | None = None
        self._membership = Membership(self._jobs, self.owner, None)
        self._member = False
        self._heartbeat = Heartbeat(self._membership, self._on_beat, lambda reason: None)

    async def start(self) -> None:
        """Open the databases and start the worker, without waiting for it."""
        self._refusal = asyncio.get_running_loop().create_future()
        await asyncio.to_thread(self._jobs.start)
        self._tenants_secret = await asyncio.to_thread(
            shared_secret, self._jobs, secrets.token_hex(32)
        )
        await self._supervisor.start()  # it loads the model meanwhile
        await self._retriever.start()
        await asyncio.to_thread(self._membership.join)
        self._member = True
        self._heartbeat.start()

    async def close(self) -> None:
        """Stop what was started; nothing where `start` failed half-way is left running."""
        await self._supervisor.stop()
        await self._worker.close()
        if self._member:
            await self._heartbeat.close()  # and give back what was claimed
        await self._retriever.close()
        await asyncio.to_thread(self._jobs.close)
        await asyncio.to_thread(self._catalog.close)

    @property
    def worker_pid(self) -> int | None:
        return self._supervisor.pid

    async def ready(self) -> None:
        """Wait until documents can be ingested."""
        if not self._member:  # it was silent for so long that the others have forgotten it
            await asyncio.to_thread(self._membership.join)
            self._member = True
        assert self._refusal is not None
        waiting = asyncio.create_task(self._worker.wait_ready())
        try:
            futures: set[asyncio.Future[Any]] = {waiting, self._refusal}
            await asyncio.wait(futures, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
            if self._refusal.done():
                raise ModelRefused(self._refusal.result())
            if not waiting.done():
                raise TimeoutError(f"the worker is not ready: {self._worker.reason}")
            waiting.result()
        finally:
            waiting.cancel()

    @property
    def chooses_prefixes(self) -> bool:
        """Whether chunks are computed behind others, which are chosen among the catalog's."""
        return self._chunks.has_copies

    def stages(self, queue: RangeQueue) -> tuple[IndexingStage, KvStage]:
        """Return the two stages that ingest the documents of a range."""
        indexing = IndexingStage(
            queue, self._chunks.retriever, self._purges, FileLimits.of(self.settings)
        )
        kv = KvStage(
            queue, self._worker, self._chunks, self._purges, loras=self.settings.precomputed_loras,
            on_reply=queue.on_reply, complete=True, wait_again_s=WAIT_AGAIN_S,
        )  # fmt: skip
        return indexing, kv

    def record_sizes(self, documents: Sequence[IngestDocument]) -> None:
        """Note the sizes of documents, by which tenants' quotas are counted."""
        with self._jobs.write() as write:
            record_sizes(write, documents)

    def _worker_settings(self, address: str) -> WorkerSettings:
        return worker_settings(
            self.settings.worker(
                self._model_folder,
                address,
                tenants_secret=self._tenants_secret,
                calibration=self._calibration,
            )
        )

    def _on_beat(self, work: OpenWork) -> None:
        self._member = work.member

    def _refuse(self, reason: str) -> None:
        if self._refusal is not None and not self._refusal.done():
            self._refusal.set_result(reason)
