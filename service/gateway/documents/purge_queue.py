"""Deletes the KV of chunks whose document was deleted or changed.

    purge added, before the change ── the change ── chunk gone: KV purged ──────── settled
                                               └── chunk still there: not needed ─────┘

Pending purges are on disk, so a crash in between forgets no KV of a deleted document. If a tier
cannot be reached, its purges stay pending and are made again until it answers.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby

from retriever import Scope
from service.errors import TierUnreached
from service.gateway.documents.catalog_lock import CatalogLock
from service.gateway.documents.deletion_records import ChunkKV, PendingPurge
from service.gateway.documents.deletion_store import DeletionStore
from service.gateway.prompts.precomputed_behind import PrecomputedBehind, with_prefixes
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.retrieval.async_retriever import AsyncRetriever
from service.gateway.worker_client.protocol import Worker
from service.messages.requests import ChunkTokens

NO_CHUNK = -1  # of a purge that only deletes copies
CHUNKS_PER_CALL = 64  # in one message to the worker
COPIES_PER_PURGE = 8  # of other chunks behind the one that is purged; further ones are other purges


class PurgeQueue:
    """Pending purges, and the rule by which they are made.

    Attributes:
        catalog_lock: Held from adding the purges for a change of documents until the change is
            made, so that no purge is judged in between.
    """

    def __init__(
        self,
        store: DeletionStore,
        retriever: AsyncRetriever,
        worker: Worker,
        prompts: PromptBuilder,
        behind: PrecomputedBehind,
        catalog_lock: CatalogLock,
    ) -> None:
        self._store = store
        self._behind = behind
        self._retriever = retriever
        self._worker = worker
        self._prompts = prompts
        self._run_lock = asyncio.Lock()
        self.catalog_lock = catalog_lock
        # Chunks whose KV is being computed. A purge made meanwhile would come too early.
        self._being_stored: set[int] = set()

    async def targets_of(self, scope: Scope, doc_ids: Sequence[str]) -> list[ChunkKV]:
        """All chunks of these documents, with the token ids that make their keys."""

        def find() -> list[ChunkKV]:
            return [
                ChunkKV(
                    scope.tenant,
                    scope.collection,
                    doc_id,
                    chunk.chunk_id,
                    self._prompts.segment(chunk),
                )
                for doc_id, chunk in self._retriever.chunks_of_documents(doc_ids, scope)
            ]

        return await self._retriever.run_blocking(find)

    async def add(self, scope: Scope, doc_ids: Sequence[str]) -> None:
        """Before these documents change: add purges for all their chunks."""
        if targets := await self._with_copies(scope, doc_ids):
            await asyncio.to_thread(self._store.add_purges, targets)

    async def open_receipt(self, scope: Scope, doc_ids: Sequence[str]) -> str:
        """Before these documents are deleted: add purges under a receipt, and return its id."""
        targets = await self._with_copies(scope, doc_ids)
        return await asyncio.to_thread(
            self._store.open_receipt, scope.tenant, scope.collection, doc_ids, targets
        )

    async def with_companions(
        self, scope: Scope, doc_ids: Sequence[str], max_context: int
    ) -> list[ChunkKV]:
        """All chunks of these documents, each with the copy that stands behind its companions.

        Companions are chosen here; copies behind earlier ones are purged. Modes without companions
        have no copies.

        Args:
            max_context: Tokens that the model takes.
        """
        targets = await self.targets_of(scope, doc_ids)
        if self._behind.kind is None:
            return targets
        chunks = await self._retriever.chunks([target.chunk_id for target in targets])
        chosen = await self._retriever.change(
            lambda: [self._behind.choose(chunk, scope, max_context) for chunk in chunks]
        )
        made = {each.chunk.chunk_id: each for each in chosen}
        old = [
            replace(target, chunk_id=NO_CHUNK, ids=[], copies=each.replaced)
            for target in targets
            if (each := made.get(target.chunk_id)) is not None and each.replaced
        ]
        if old:
            await asyncio.to_thread(self._store.add_purges, old)
        return [
            replace(target, copies=[made[target.chunk_id].chunk])
            for target in targets
            if target.chunk_id in made
        ]

    async def _with_copies(self, scope: Scope, doc_ids: Sequence[str]) -> list[ChunkKV]:
        """All that holds text of these documents, or follows from it.

        A chunk behind which many others stand makes several targets.
        """
        targets = await self.targets_of(scope, doc_ids)
        chunk_ids = [target.chunk_id for target in targets]
        copies = await self._retriever.run_blocking(lambda: self._behind.copies(chunk_ids))
        out: list[ChunkKV] = []
        for target in targets:
            own = copies[target.chunk_id]
            out.append(replace(target, copies=own[:COPIES_PER_PURGE]))
            out += [
                replace(target, ids=[], copies=own[start : start + COPIES_PER_PURGE])
                for start in range(COPIES_PER_PURGE, len(own), COPIES_PER_PURGE)
            ]
        return out

    @asynccontextmanager
    async def storing(self, targets: Sequence[ChunkKV]) -> AsyncIterator[None]:
        """Hold this while the KV of these chunks is computed and stored.

        Their purges wait until it is left. Chunks that were deleted meanwhile are then purged.
        """
        await asyncio.to_thread(self._store.record_contents, targets)
        chunk_ids = {target.chunk_id for target in targets}
        self._being_stored |= chunk_ids
        try:
            yield
        finally:
            self._being_stored -= chunk_ids
            stored = await self._retriever.stored_chunks(chunk_ids)
            gone = [target for target in targets if target.chunk_id not in stored]
            gone += await self._lost_companions([t for t in targets if t.chunk_id in stored])
            if gone:
                await asyncio.to_thread(self._store.add_purges, gone)

    async def _lost_companions(self, targets: Sequence[ChunkKV]) -> list[ChunkKV]:
        """Purges of copies whose companions were deleted while they were computed."""
        made = [target for target in targets if target.copies]
        chunk_ids = [target.chunk_id for target in made]
        now = await self._retriever.run_blocking(lambda: self._behind.copies(chunk_ids))
        return [
            replace(target, chunk_id=NO_CHUNK, ids=[], copies=with_prefixes(target.copies))
            for target in made
            if any(copy not in now[target.chunk_id] for copy in target.copies)
        ]

    async def run_due(
        self, receipt_id: str | None = None, *, begin_within_s: float | None = None
    ) -> bool:
        """Make the purges that are due, of one receipt if it is given; False if none was made.

        Args:
            begin_within_s: Purges that do not begin within so many seconds stay pending.

        Raises:
            WorkerUnavailable: The worker is away; the purges stay pending.
            TierUnreached: A tier is away; its purges stay pending.
        """
        purged = False
        give_up_at = math.inf if begin_within_s is None else time.monotonic() + begin_within_s
        try:
            async with asyncio.timeout(begin_within_s):
                await self._run_lock.acquire()
        except TimeoutError:
            return False
        try:
            while time.monotonic() < give_up_at and (due := await self._due(receipt_id)):
                purged = True
                for (tenant, owner), group in groupby(due, lambda p: (p.tenant, p.receipt_id)):
                    await self._purge(tenant, owner, list(group))
        finally:
            self._run_lock.release()
        if purged:
            # Token ids can be decoded to text, so none of them may stay on disk.
            await asyncio.to_thread(self._store.scrub)
        return purged

    async def _purge(self, tenant: str, receipt_id: str | None, due: list[PendingPurge]) -> None:
        chunks = [ChunkTokens(purge.chunk_id, purge.ids) for purge in due if not purge.shared]
        chunks += [copy for purge in due for copy in purge.copies]
        done = await self._worker.purge(
            self._prompts.system, chunks, self._prompts.prefix_mode, tenant
        )
        if not done.unreached:
            await asyncio.to_thread(self._store.settle, due, done.copies)
            return
        names = ", ".join(done.unreached)
        await asyncio.to_thread(
            self._store.record_unreached, receipt_id, done.copies, sorted(done.unreached)
        )
        raise TierUnreached(f"deleted KV may still be in {names}, which cannot be reached")

    async def _due(self, receipt_id: str | None) -> list[PendingPurge]:
        """Purges to make now, sorted by tenant and receipt; those not needed are settled.

        A purge is not needed if its chunk is still there, or if another chunk has the same token
        ids (in the document's new revision, or in another document of the tenant), because KV is
        stored by content.
        """
        due: list[PendingPurge] = []
        while not due:
            async with self.catalog_lock:
                limit = CHUNKS_PER_CALL + len(self._being_stored)
                pending = await asyncio.to_thread(self._store.pending_purges, limit, receipt_id)
                pending = [p for p in pending if p.chunk_id not in self._being_stored]
                if not pending:
                    break
                stored = await self._retriever.stored_chunks([p.chunk_id for p in pending])
                gone = [p for p in pending if p.chunk_id not in stored]
                gone = [replace(p, shared=await self._is_shared(p)) for p in gone]
                due = [p for p in gone if p.copies or not p.shared]
                gone_ids = [p.chunk_id for p in gone]
                await asyncio.to_thread(self._store.forget_contents, gone_ids)
                await self._retriever.change(partial(self._behind.forget, gone_ids))
                numbers = {p.number for p in due}
                not_needed = [p for p in pending if p.number not in numbers]
                await asyncio.to_thread(self._store.drop, not_needed)
        return sorted(due, key=lambda p: (p.tenant, p.receipt_id or ""))

    async def _is_shared(self, purge: PendingPurge) -> bool:
        """Whether a chunk that is still there has the same content.

        What stands behind other chunks, or behind this one, is no part of that.
        """
        if not purge.ids:
            return True
        scope = Scope(purge.tenant, purge.collection)
        same_document = await self._retriever.chunks_of(purge.doc_id, scope=scope)
        if any(self._prompts.segment(chunk) == purge.ids for chunk in same_document):
            return True
        same = await asyncio.to_thread(self._store.chunks_with_content, purge.tenant, purge.ids)
        others = [chunk_id for chunk_id in same if chunk_id != purge.chunk_id]
        return bool(others) and bool(await self._retriever.stored_chunks(others))
