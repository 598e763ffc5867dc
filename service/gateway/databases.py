"""The databases of a gateway: files in its data folder, or PostgreSQL, which gateways share."""

import asyncio
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kvstitch.encryption.keyring import Keyring
from kvstitch.retriever.catalog.catalog import Catalog
from kvstitch.retriever.catalog.tables import catalog_database
from kvstitch.retriever.sql.database import Database
from kvstitch.retriever.sql.expressions import upsert
from kvstitch.service.gateway.auth.keys import KeyCache, KeyStore
from kvstitch.service.gateway.data_folder import DiskGuard, own_secret
from kvstitch.service.gateway.documents.corpus import Corpus
from kvstitch.service.gateway.documents.deletion.purge_queue import CatalogLock
from kvstitch.service.gateway.documents.membership import Heartbeat, Membership
from kvstitch.service.gateway.encryption.tenant_keys import (
    TenantKeys,
    require_no_keys,
    tenant_keys_of,
)
from kvstitch.service.gateway.service_database import (
    ServiceDatabase,
    jobs_database,
    shared_database,
)
from kvstitch.service.gateway.tables import jobs, purges, secrets, sizes
from kvstitch.service.settings import Settings


class Databases:
    """What the parts of a gateway are given. Where there are files, this gateway is alone."""

    def __init__(self, settings: Settings, disk: DiskGuard) -> None:
        self._settings = settings
        self.tenant_keys: TenantKeys | None = None
        self.catalog: Database | None = None
        self._membership: Membership | None = None
        self._heartbeat: Heartbeat | None = None
        self._following: asyncio.Task[None] | None = None
        folder = settings.data_dir
        if not settings.database:
            self.jobs = jobs_database(folder / "jobs.sqlite3", disk)
            self.keys = KeyStore(folder / "keys.sqlite3")
            self.catalog_lock = CatalogLock()
            self.tenant_keys = tenant_keys_of(settings, None)
            return
        self.jobs = shared_database(settings.database, uuid.uuid4().hex)
        self.tenant_keys = tenant_keys_of(settings, self.jobs)
        self.catalog = catalog_database(settings.database)
        self.keys = KeyCache(self.jobs)
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
        self.keys.start()
        if self.tenant_keys is None:
            require_no_keys(self._settings, self.jobs if self.jobs.shared else None)
        else:
            self.tenant_keys.start()
        if self._membership is not None:
            self._membership.join()

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
            self._following = asyncio.create_task(self.keys.follow(), name="keys")

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._heartbeat is not None:
            await self._heartbeat.close()
        for store in (self.keys, self.tenant_keys, self.jobs, self.catalog):
            if store is not None:
                await asyncio.to_thread(store.close)


def shared_secret(database: ServiceDatabase, own: str) -> str:
    """Return what keys the chunks of named tenants for all who share a database: `own`, if it
    has none."""
    with database.write() as write:
        upsert(write, secrets, [{"name": "tenants", "value": own}], replace=False)
        found = sa.select(secrets.c.value).where(secrets.c.name == "tenants")
        return str(write.scalars(found).one())


@contextmanager
def key_store(settings: Settings) -> Iterator[KeyStore]:
    """Yield the API keys alone, for the command line. Raises InvalidSetting."""
    url = settings.database
    store = KeyStore(
        shared_database(url, connections=1) if url else settings.data_dir / "keys.sqlite3"
    )
    try:
        store.start()
        yield store
    finally:
        store.close()


def delete_keys(settings: Settings, keys: TenantKeys, tenant: str) -> dict[str, Any]:
    """Delete a tenant's keys, then the rows that nobody can read any more, but for KV and backups.

    The keys go first: should this be interrupted, nothing is readable, and it can be called again.
    Returns the receipt. `keys` are started.
    """
    key_ids = [key_id.hex() for key_id in keys.delete(tenant)]
    url, folder = settings.database, settings.data_dir
    with closing(Catalog(catalog_database(url or folder / "catalog.db", connections=1))) as catalog:
        catalog.start()
        documents, chunks = catalog.drop_tenant(tenant)
        catalog.purge()
    with closing(
        shared_database(url, connections=1) if url else jobs_database(folder / "jobs.sqlite3")
    ) as database:
        database.start()
        with database.write() as write:
            for table in (jobs, purges, sizes):
                write.execute(table.delete().where(table.c.tenant == tenant))
        database.scrub()
    return {
        "receipt_id": uuid.uuid4().hex,
        "tenant": tenant,
        "key_ids": key_ids,
        "documents": documents,
        "chunks": chunks,
        "completed": datetime.now(UTC).isoformat(timespec="seconds"),
    }
