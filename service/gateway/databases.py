"""The databases of a gateway: files in its data folder, or PostgreSQL, which gateways share."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import select

from encryption.keyring import Keyring
from retriever.catalog.tables import catalog_database
from retriever.index.vector_search import VectorSearch
from retriever.sql.database import Database
from retriever.sql.expressions import upsert
from service.gateway.auth.access import Keys
from service.gateway.auth.key_cache import KeyCache
from service.gateway.auth.keys import KeyStore
from service.gateway.auth.secret_file import own_secret
from service.gateway.data_folder import DiskGuard
from service.gateway.documents.corpus import Corpus
from service.gateway.documents.deletion.purge_queue import CatalogLock
from service.gateway.documents.membership import Heartbeat, Membership
from service.gateway.encryption.tenant_keys import (
    TenantKeys,
    require_no_keys,
    tenant_keys_of,
)
from service.gateway.service_database import ServiceDatabase, jobs_database, shared_database
from service.gateway.tables import secrets
from service.settings import Settings


class Databases:
    """What the parts of a gateway are given. Where there are files, this gateway is alone."""

    def __init__(self, settings: Settings, disk: DiskGuard) -> None:
        self._settings = settings
        self.tenant_keys: TenantKeys | None = None
        self.catalog: Database | None = None
        self.index: VectorSearch | None = None
        self._membership: Membership | None = None
        self._heartbeat: Heartbeat | None = None
        folder = settings.data_dir
        if not settings.database:
            self.jobs = jobs_database(folder / "jobs.sqlite3", disk)
            self._key_store = KeyStore(folder / "keys.sqlite3")
            self.keys: Keys = self._key_store
            self.catalog_lock = CatalogLock()
            self.tenant_keys = tenant_keys_of(settings, None)
            return
        self.jobs = shared_database(settings.database, uuid.uuid4().hex)
        self.tenant_keys = tenant_keys_of(settings, self.jobs)
        self.catalog = catalog_database(settings.database)
        if settings.vectors == "pgvector":
            from retriever.index.pgvector_index import PgvectorIndex

            self.index = PgvectorIndex(self.catalog)
        self._key_store = KeyStore(self.jobs)
        self.keys = KeyCache(self._key_store)
        self.catalog_lock = CatalogLock(self.jobs)
        # Shared workers keep KV themselves, and are asked by every gateway.
        keeps_kv = settings.ssd_tier_gib and not settings.worker_addresses
        name = f"{socket.gethostname()}:{os.getpid()}"
        self._membership = Membership(
            self.jobs, name, folder, kv_dir=settings.kv_dir if keeps_kv else None
        )

    def open(self) -> None:
        """Open all, before any request can come. Blocks."""
        self.jobs.start()
        self._key_store.start()
        if self.tenant_keys is None:
            require_no_keys(self._settings, self.jobs if self.jobs.shared else None)
        else:
            self.tenant_keys.start()
        if self._membership is not None:
            self._membership.join()
        if isinstance(self.keys, KeyCache):
            self.keys.refresh()

    @property
    def ring(self) -> Keyring | None:
        """What seals and opens KV; None: it is in the clear."""
        return None if self.tenant_keys is None else self.tenant_keys.ring

    def tenants_secret(self) -> str:
        """Return what keys the chunks of named tenants, where KVSTITCH_TENANT_SECRET is not set."""
        own = own_secret(self._settings.data_dir)
        return shared_secret(self.jobs, own) if self.jobs.shared else own

    def start(self, corpus: Corpus, give_up: Callable[[str], None]) -> None:
        """Begin what goes on between a gateway and the others."""
        if self._membership is not None:
            self._heartbeat = Heartbeat(self._membership, corpus.on_heartbeat, give_up)
            self._heartbeat.start()
        if isinstance(self.keys, KeyCache):
            self.keys.start()

    async def close(self) -> None:
        if isinstance(self.keys, KeyCache):
            await self.keys.close()
        if self._heartbeat is not None:
            await self._heartbeat.close()
        await asyncio.to_thread(self._key_store.close)
        if self.tenant_keys is not None:
            await asyncio.to_thread(self.tenant_keys.close)
        await asyncio.to_thread(self.jobs.close)
        if self.catalog is not None:
            await asyncio.to_thread(self.catalog.close)


def shared_secret(database: ServiceDatabase, own: str) -> str:
    """Return what keys the chunks of named tenants for all who share a database: `own`, if it
    has none."""
    with database.write() as write:
        upsert(write, secrets, [{"name": "tenants", "value": own}], replace=False)
        found = select(secrets.c.value).where(secrets.c.name == "tenants")
        return str(write.scalars(found).one())


@contextmanager
def key_store(settings: Settings) -> Iterator[KeyStore]:
    """Yield the API keys alone, for the command line.

    Raises:
        InvalidSetting: They cannot be used.
    """
    url = settings.database
    store = KeyStore(
        shared_database(url, connections=1) if url else settings.data_dir / "keys.sqlite3"
    )
    try:
        store.start()
        yield store
    finally:
        store.close()
