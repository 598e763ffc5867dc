"""The gateway's ingest as a library: catalog, purges and prompts of one actor."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Sequence
from pathlib import Path

from retriever import Retriever
from retriever.catalog.tables import catalog_database
from retriever.index.pgvector_index import PgvectorIndex
from retriever.sql.postgresql import Postgresql
from service.bulk.worker_process import WorkerProcess
from service.errors import InvalidSetting
from service.gateway import shared_schema
from service.gateway.databases import shared_secret
from service.gateway.documents.catalog_lock import CatalogLock
from service.gateway.documents.deletion_store import DeletionStore
from service.gateway.documents.document_indexer import DocumentIndexer
from service.gateway.documents.jobs.postgresql_job_database import PostgresqlJobDatabase
from service.gateway.documents.parsing.parser import DocumentParser
from service.gateway.documents.parsing.sandbox import FileLimits
from service.gateway.documents.purge_queue import PurgeQueue
from service.gateway.prompts.precomputed_behind import KINDS, PrecomputedBehind
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.retrieval.async_retriever import AsyncRetriever
from service.gateway.retrieval.model_factory import make_embedder
from service.gateway.retrieval.timed_embedder import TimedEmbedder
from service.gateway.worker_client.supervisor import COMMAND
from service.settings import Settings, calibration
from service.shared.worker_settings import MIB

CONNECTIONS = 4  # of each of two pools


def calibrated(settings: Settings, model_folder: Path) -> tuple[Settings, Path | None]:
    """The settings that a gateway would serve with, and the calibration that it found."""
    found = calibration.find(settings, model_folder)
    return (settings, None) if found is None else (found.settings(settings), found.path)


def check(settings: Settings, prompts: PromptBuilder) -> None:
    """Refuse settings with which bulk cannot do what the gateways need.

    Raises:
        InvalidSetting: It says which, and what to do.
    """
    if not settings.database:
        raise InvalidSetting(
            "bulk needs the gateways' PostgreSQL: give --database, or set KVSTITCH_DATABASE"
        )
    if not settings.redis_url and not settings.s3_url:
        raise InvalidSetting(
            "bulk needs a KV tier that the gateways share: give --redis or --s3 as they have it"
        )
    written = [name for name in settings.write_tiers.split(",") if name]
    if written and not {"redis", "s3"} & set(written):
        raise InvalidSetting(f"write_tiers = {settings.write_tiers!r} names no tier that is shared")
    if prompts.prefix_mode in KINDS:
        raise InvalidSetting(
            f"bulk does not choose companions, which prefix_mode {prompts.prefix_mode} needs: "
            "ingest through a gateway, or serve with another prefix mode"
        )


def file_limits(settings: Settings) -> FileLimits:
    """What parsing one file may take."""
    return FileLimits(
        settings.max_file_pages,
        settings.max_file_chars,
        settings.file_cpu_s,
        settings.file_memory_mib * MIB,
    )


class CorpusAccess:
    """Between start() and close() documents can be indexed, and their KV be stored.

    Attributes:
        prompts: Encodes chunks as gateways do.
        worker: Computes them.
        indexer: Brings documents into the catalog.
        purges: Guards changes of the catalog.
        jobs: The gateways' other tables.
    """

    def __init__(
        self, settings: Settings, model_folder: Path, *, worker_command: Sequence[str] = COMMAND
    ) -> None:
        """Nothing is opened.

        Args:
            worker_command: Starts a worker process.

        Raises:
            InvalidSetting: As `check`.
            ModelRefused: The model folder cannot be used.
        """
        settings, found = calibrated(settings, model_folder)
        self.settings = settings
        self.prompts = PromptBuilder(model_folder, settings)
        check(settings, self.prompts)
        self._model_folder = model_folder
        self._worker_command = worker_command
        self._calibration = found
        self._catalog = catalog_database(settings.database, connections=CONNECTIONS)
        self._pool = Postgresql(settings.database, shared_schema.SCHEMA, connections=CONNECTIONS)
        self.jobs = PostgresqlJobDatabase(self._pool, f"bulk-{uuid.uuid4().hex}")
        self._embedder = TimedEmbedder(make_embedder(settings))

    async def start(self) -> None:
        """Open the databases and start the worker, without waiting for it.

        Raises:
            KvstitchError: A database or the embedder cannot be used.
        """
        await asyncio.to_thread(self.jobs.start)
        secret = await asyncio.to_thread(shared_secret, self.jobs, secrets.token_hex(32))
        self.process = WorkerProcess(
            self.settings,
            self._model_folder,
            tenants_secret=secret,
            calibration=self._calibration,
            command=self._worker_command,
        )
        self.worker = self.process.client
        await self.process.start()  # it loads the model meanwhile
        index = PgvectorIndex(self._catalog) if self.settings.vectors == "pgvector" else None
        retriever = Retriever.for_storing(
            self._catalog,
            self._embedder,
            self.prompts.chunking(),
            index=index,
        )
        self.retriever = AsyncRetriever(retriever, self._embedder)
        await self.retriever.start()
        behind = PrecomputedBehind(self.prompts, self.retriever.companions, 0)
        self.purges = PurgeQueue(
            DeletionStore(self.jobs), self.retriever, self.worker, self.prompts, behind,
            CatalogLock(self._pool),
        )  # fmt: skip
        parser = DocumentParser(file_limits(self.settings))
        self.indexer = DocumentIndexer(self.retriever, self.purges, parser)

    async def close(self) -> None:
        """Stop what was started; nothing where `start` failed half-way is left running."""
        await self.process.stop()
        await self.retriever.close()
        await asyncio.to_thread(self._pool.close)
        await asyncio.to_thread(self._catalog.close)
