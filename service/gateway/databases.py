"""The databases of a gateway: files in its data folder, or PostgreSQL, which gateways share.

psycopg is imported only where an address is set.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from retriever.catalog.tables import catalog_database
from retriever.index.vector_search import VectorSearch
from retriever.sql.database import Database
from retriever.sql.postgresql import Postgresql
from service.gateway.auth.access import Keys
from service.gateway.auth.key_databases import KeyDatabase
from service.gateway.auth.keys import KeyStore
from service.gateway.auth.secret_file import own_secret
from service.gateway.data_folder import DiskGuard
from service.gateway.documents.corpus import Corpus
from service.gateway.documents.jobs.job_database import JobDatabase
from service.gateway.documents.jobs.sqlite_job_database import SqliteJobDatabase
from service.gateway.documents.purge_queue import CatalogLock
from service.settings import Settings

if TYPE_CHECKING:
    from service.gateway.documents.membership import Heartbeat

logger = logging.getLogger(__name__)


class Databases(Protocol):
    """What the parts of a gateway are given.

    Attributes:
        catalog: Of documents; None: a file that the retriever opens.
        index: Of vectors; None: FAISS, in this process.
        keys: What requests are let through by.
        jobs: Jobs, deletions, events.
        catalog_lock: Held during changes of the catalog.
    """

    @property
    def catalog(self) -> Database | None: ...

    @property
    def index(self) -> VectorSearch | None: ...

    @property
    def keys(self) -> Keys: ...

    @property
    def jobs(self) -> JobDatabase: ...

    @property
    def catalog_lock(self) -> CatalogLock: ...

    def open(self) -> None:
        """Open all, before any request can come. Blocks.

        Raises:
            InvalidSetting: One of them cannot be used.
            DiskFull: There is no room.
        """

    def tenants_secret(self) -> str:
        """What keys the chunks of named tenants, where KVSTITCH_TENANT_SECRET is not set."""

    def start(self, corpus: Corpus, give_up: Callable[[str], None]) -> None:
        """Begin what goes on between a gateway and the others.

        Args:
            corpus: Told of work that others have left.
            give_up: Called with the reason when this gateway may not go on.
        """

    async def close(self) -> None: ...


class EmbeddedDatabases:
    """Files in the data folder of one gateway."""

    catalog = None
    index = None

    def __init__(self, settings: Settings, disk: DiskGuard) -> None:
        self._settings = settings
        self.keys = KeyStore(settings.data_dir / "keys.sqlite3")
        self.jobs = SqliteJobDatabase(settings.data_dir / "jobs.sqlite3", disk)
        self.catalog_lock = CatalogLock()

    def open(self) -> None:
        self.keys.start()
        self.jobs.start()

    def tenants_secret(self) -> str:
        return own_secret(self._settings.data_dir)

    def start(self, corpus: Corpus, give_up: Callable[[str], None]) -> None:
        """There are no others."""

    async def close(self) -> None:
        self.jobs.close()
        self.keys.close()


class SharedDatabases:
    """PostgreSQL. The data folder keeps what is this gateway's own: its index, its KV, uploads."""

    def __init__(self, settings: Settings) -> None:
        from retriever.index.pgvector_index import PgvectorIndex
        from service.gateway import shared_schema
        from service.gateway.auth.key_cache import KeyCache
        from service.gateway.auth.postgresql_keys import PostgresqlKeyDatabase
        from service.gateway.documents.jobs.postgresql_job_database import PostgresqlJobDatabase
        from service.gateway.documents.membership import Membership

        self._settings = settings
        self._pool = Postgresql(settings.database, shared_schema.SCHEMA)
        self.catalog = catalog_database(settings.database)
        self.index = PgvectorIndex(self.catalog) if settings.vectors == "pgvector" else None
        self.jobs = PostgresqlJobDatabase(self._pool, uuid.uuid4().hex)
        self._key_store = KeyStore(PostgresqlKeyDatabase(self._pool))
        self.keys = KeyCache(self._key_store)
        self.catalog_lock = CatalogLock(self._pool)
        self._membership = Membership(
            self.jobs,
            f"{socket.gethostname()}:{os.getpid()}",
            settings.data_dir,
            # Shared workers keep KV themselves, and are asked by every gateway.
            kv_dir=settings.kv_dir
            if settings.ssd_tier_gib and not settings.worker_addresses
            else None,
        )
        self._heartbeat: Heartbeat | None = None

    def open(self) -> None:
        self.jobs.start()
        self._membership.join()
        self.keys.refresh()

    def tenants_secret(self) -> str:
        """The first gateway's, so that all find the same chunks."""
        return shared_secret(self.jobs, own_secret(self._settings.data_dir))

    def start(self, corpus: Corpus, give_up: Callable[[str], None]) -> None:
        from service.gateway.documents.membership import Heartbeat

        self._heartbeat = Heartbeat(self._membership, corpus.on_heartbeat, give_up)
        self._heartbeat.start()
        self.keys.start()

    async def close(self) -> None:
        await self.keys.close()
        if self._heartbeat is not None:
            await self._heartbeat.close()
        await asyncio.to_thread(self._pool.close)
        await asyncio.to_thread(self.catalog.close)


def shared_secret(database: JobDatabase, own: str) -> str:
    """What keys the chunks of named tenants for all who share a database: `own` if it has none."""
    with database.transaction() as write:
        write.execute("INSERT INTO secrets VALUES ('tenants', ?) ON CONFLICT DO NOTHING", (own,))
        row = write.execute("SELECT value FROM secrets WHERE name = 'tenants'").fetchone()
    return str(row["value"])


@contextmanager
def key_store(settings: Settings) -> Iterator[KeyStore]:
    """The API keys alone, for the command line.

    Raises:
        InvalidSetting: They cannot be used.
    """
    pool: Postgresql | None = None
    where: KeyDatabase | Path = settings.data_dir / "keys.sqlite3"
    if settings.database:
        from service.gateway import shared_schema
        from service.gateway.auth.postgresql_keys import PostgresqlKeyDatabase

        pool = Postgresql(settings.database, shared_schema.SCHEMA, connections=1)
        where = PostgresqlKeyDatabase(pool)
    store = KeyStore(where)
    try:
        store.start()
        yield store
    finally:
        store.close()
        if pool is not None:
            pool.close()


def databases(settings: Settings, disk: DiskGuard) -> Databases:
    """The databases that the settings name, not opened."""
    return SharedDatabases(settings) if settings.database else EmbeddedDatabases(settings, disk)
