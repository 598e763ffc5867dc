"""Deletes the KV of chunks whose document was deleted or changed.

    purge added, before the change ── the change ── chunk gone: KV purged ──────── settled
                                               └── chunk still there: not needed ─────┘

Pending purges are on disk, so a crash in between forgets no KV of a deleted document. If a tier
cannot be reached, its purges stay pending and are made again until it answers.
"""

import asyncio
import math
import time
import uuid
from collections.abc import (
    AsyncIterator,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from itertools import groupby

from kvstitch.retriever import Scope
from kvstitch.retriever.documents import CatalogState
from kvstitch.retriever.sql.database import Database
from kvstitch.service.errors import TierUnreached
from kvstitch.service.gateway.documents.chunk_kv import COPIES_PER_CALL, ChunkKV, ChunkKVs
from kvstitch.service.gateway.documents.deletion.deletion_store import DeletionStore, PendingPurge
from kvstitch.service.gateway.fleet.worker_pool import Worker
from kvstitch.service.messages.requests import ChunkTokens, Purge

CHANGING = 0x6B76_0003  # number of the advisory lock


class CatalogLock:
    """The lock on the catalog: held from adding the purges for a change until the change is made.
    Not reentrant.

    In one process it is a lock of asyncio. Where several gateways share a database it is also an
    advisory lock of PostgreSQL, which ends with the session of a gateway that dies.
    """

    def __init__(self, database: Database | None = None) -> None:
        self._database = database
        self._local = asyncio.Lock()
        self._held: AbstractContextManager[None] | None = None

    async def __aenter__(self) -> None:
        """Wait for the lock; raises DatabaseUnavailable if PostgreSQL does not answer."""
        await self._local.acquire()
        if self._database is None:
            return
        lock = self._database.locked(CHANGING)
        entering = asyncio.create_task(asyncio.to_thread(lock.__enter__))
        try:
            await asyncio.shield(entering)
        except asyncio.CancelledError:
            # The thread goes on waiting for the lock, and gives it back at once.
            entering.add_done_callback(lambda done: self._give_back(done, lock))
            raise
        except BaseException:
            self._local.release()
            raise
        self._held = lock

    async def __aexit__(self, *_: object) -> None:
        held, self._held = self._held, None
        try:
            if held is not None:
                await asyncio.shield(asyncio.to_thread(held.__exit__, None, None, None))
        finally:
            self._local.release()

    def _give_back(self, done: asyncio.Task[None], lock: AbstractContextManager[None]) -> None:
        if not done.cancelled() and done.exception() is None:
            lock.__exit__(None, None, None)
        self._local.release()


CHUNKS_PER_CALL = 64  # in one message to the worker
TEXTS_KEPT = 64  # documents


class PurgeQueue:
    """Pending purges, and the rule by which they are made.

    `catalog_lock` is held from adding the purges for a change of documents until the change is
    made, so that no purge is judged in between.
    """

    def __init__(
        self,
        store: DeletionStore,
        chunks: ChunkKVs,
        worker: Worker,
        catalog_lock: CatalogLock,
    ) -> None:
        self._clock = time.monotonic
        self._store = store
        self._chunks = chunks
        self._worker = worker
        self._run_lock = asyncio.Lock()
        self.catalog_lock = catalog_lock
        # Chunks whose KV is being computed. A purge made meanwhile would come too early.
        self._being_stored: set[int] = set()
        # Digests of the texts that documents with pending purges have now, in this state of the
        # catalog: a book is read once for all of its old chunks.
        self._texts: dict[tuple[Scope, str], set[bytes]] = {}
        self._texts_of: CatalogState | None = None

    async def add(self, scope: Scope, readers: Mapping[str, str]) -> None:
        """Add purges for all chunks of documents, before they change to have these readers."""
        catalog = self._chunks.retriever.catalog
        before = await self._chunks.retriever.run(catalog.readers_of, list(readers), scope=scope)
        other = {name for name in before if before[name] != readers[name]}
        await self.add_kv(await self._chunks.to_purge(scope, list(readers), other_readers=other))

    async def add_kv(self, chunks: Sequence[ChunkKV]) -> None:
        if chunks:
            await asyncio.to_thread(self._store.add_purges, chunks)

    async def open_receipt(
        self, scope: Scope, doc_ids: Sequence[str], readers: Collection[str]
    ) -> str:
        """Add purges under a receipt, before these documents are deleted; return its id. Only who
        may read all of them may read the receipt."""
        chunks = await self._chunks.to_purge(scope, doc_ids, together=True)
        return await asyncio.to_thread(self._store.open_receipt, scope, doc_ids, chunks, readers)

    @asynccontextmanager
    async def storing(self, chunks: Sequence[ChunkKV]) -> AsyncIterator[None]:
        """Hold this while the KV of these chunks is computed: their purges wait. Chunks that were
        deleted meanwhile are purged then."""
        await asyncio.to_thread(self._store.record_contents, chunks)
        chunk_ids = {chunk.chunk_id for chunk in chunks}
        self._being_stored |= chunk_ids
        try:
            yield
        finally:
            self._being_stored -= chunk_ids
            stored = await self._chunks.stored(chunk_ids)
            gone = [chunk for chunk in chunks if chunk.chunk_id not in stored]
            copied = [c for c in chunks if c.copies and c.chunk_id in stored]
            if copied:
                gone += await self._chunks.outdated(copied)
            await self.add_kv(gone)

    async def run_due(
        self, receipt_id: str | None = None, *, begin_within_s: float | None = None
    ) -> bool:
        """Make the purges that are due, of one receipt if it is given; False if none was made.

        Those stay pending that do not begin within so many seconds, and those of a worker or tier
        that is away (WorkerUnavailable, TierUnreached).
        """
        purged = False
        give_up_at = math.inf if begin_within_s is None else self._clock() + begin_within_s
        try:
            async with asyncio.timeout(begin_within_s):
                await self._run_lock.acquire()
        except TimeoutError:
            return False
        try:
            while self._clock() < give_up_at and (due := await self._take_due(receipt_id)):
                purged = True
                for (tenant, owner), group in groupby(due, lambda p: (p.tenant, p.receipt_id)):
                    for part in _calls(group):
                        await self._purge(tenant, owner, part)
        finally:
            self._run_lock.release()
        if purged:
            # Token ids can be decoded to text, so none of them may stay on disk.
            await asyncio.to_thread(self._store.database.scrub)
        return purged

    async def _purge(self, tenant: str, receipt_id: str | None, due: list[PendingPurge]) -> None:
        chunks = [ChunkTokens(purge.chunk_id, purge.ids) for purge in due if not purge.shared]
        chunks += [copy for purge in due for copy in purge.copies]
        prompts = self._chunks.prompts
        texts = [purge.ids for purge in due if purge.shared and purge.prompts]
        done = await self._worker.purge(
            Purge(uuid.uuid4().hex, prompts.system, chunks, prompts.prefix_mode, tenant, texts)
        )
        if not done.unreached:
            await asyncio.to_thread(self._store.settle, due, done.copies)
            return
        names = ", ".join(done.unreached)
        await asyncio.to_thread(
            self._store.record_unreached, receipt_id, done.copies, sorted(done.unreached)
        )
        raise TierUnreached(f"deleted KV may still be in {names}, which cannot be reached")

    async def _take_due(self, receipt_id: str | None) -> list[PendingPurge]:
        """Return the purges to make now, sorted by tenant and receipt; drop those not needed."""
        due: list[PendingPurge] = []
        while not due:
            async with self.catalog_lock:
                limit = CHUNKS_PER_CALL + len(self._being_stored)
                pending = await asyncio.to_thread(self._store.pending_purges, limit, receipt_id)
                pending = [p for p in pending if p.chunk_id not in self._being_stored]
                if not pending:
                    break
                stored = await self._chunks.stored([p.chunk_id for p in pending])
                gone = [p for p in pending if p.chunk_id not in stored]
                await self._follow_catalog()
                gone = [replace(p, shared=await self._is_shared(p)) for p in gone]
                due = [p for p in gone if p.copies or p.prompts or not p.shared]
                gone_ids = [p.chunk_id for p in gone]
                await asyncio.to_thread(self._store.forget_contents, gone_ids)
                await self._chunks.retriever.change(
                    self._chunks.prefixes.remembered.forget, gone_ids
                )
                numbers = {p.number for p in due}
                not_needed = [p for p in pending if p.number not in numbers]
                await asyncio.to_thread(self._store.drop, not_needed)
        return sorted(due, key=lambda p: (p.tenant, p.receipt_id or ""))

    async def _follow_catalog(self) -> None:
        state = await self._chunks.retriever.run(self._chunks.retriever.catalog.state)
        if state != self._texts_of or len(self._texts) > TEXTS_KEPT:
            self._texts.clear()
            self._texts_of = state

    async def _is_shared(self, purge: PendingPurge) -> bool:
        """Return whether a chunk that is still there has the same content, prefixes left out."""
        if not purge.ids:
            return True
        document = Scope(purge.tenant, purge.collection), purge.doc_id
        if (texts := self._texts.get(document)) is None:
            chunks = await self._chunks.of(document[0], [purge.doc_id])
            texts = self._texts[document] = await asyncio.to_thread(
                lambda: {chunk.digest for chunk in chunks}
            )
        if (digest := purge.digest) in texts:
            return True
        same = await asyncio.to_thread(self._store.chunks_with_content, digest)
        others = [chunk_id for chunk_id in same if chunk_id != purge.chunk_id]
        return bool(others) and bool(await self._chunks.stored(others))


def _calls(due: Iterable[PendingPurge]) -> Iterator[list[PendingPurge]]:
    """Yield what one message to the worker purges: a copy may have thousands of tokens."""
    part: list[PendingPurge] = []
    copies = 0
    for each in due:
        if part and copies + len(each.copies) > COPIES_PER_CALL:
            yield part
            part, copies = [], 0
        part.append(each)
        copies += len(each.copies)
    if part:
        yield part
