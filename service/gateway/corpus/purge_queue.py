"""KV that must go because its document was deleted or changed. Knows no HTTP and no tensors.

    note (before the change) ── the change ── due: the chunk is gone ── purge ── settled
                                          └── not due: it is still there ──────────┘

The notes are on disk, so that a crash in between forgets no KV of a deleted document. A tier that
cannot be reached leaves its purges owed: they are made again until it answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby

from retriever import Scope
from service.errors import WorkerUnavailable
from service.gateway.corpus.job_records import PendingPurge
from service.gateway.corpus.receipt_store import PurgeTarget, ReceiptStore
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.retrieval.async_retriever import AsyncRetriever
from service.gateway.worker_client.protocol import Worker
from service.messages import Chunk

CALL_CHUNKS = 64  # chunks in one call to the worker


class TierUnreached(WorkerUnavailable):
    """The worker is there, but not every tier: what is owed stays so."""


class PurgeQueue:
    """Hold `changing` from the note of a purge to the end of the change it is about."""

    def __init__(
        self,
        receipts: ReceiptStore,
        retriever: AsyncRetriever,
        worker: Worker,
        prompts: PromptBuilder,
    ) -> None:
        self._receipts = receipts
        self._retriever = retriever
        self._worker = worker
        self._prompts = prompts
        self._calling = asyncio.Lock()
        self.changing = asyncio.Lock()
        # Chunks whose KV is being computed now: a purge made meanwhile would be too early.
        self.computing: set[int] = set()

    async def notes(self, scope: Scope, doc_ids: Sequence[str]) -> list[PurgeTarget]:
        """The KV of all chunks of these documents."""
        return [
            PurgeTarget(
                scope.tenant, scope.collection, d, chunk.chunk_id, self._prompts.segment(chunk)
            )
            for d in doc_ids
            for chunk in await self._retriever.chunks_of(d, scope=scope)
        ]

    async def note(self, scope: Scope, doc_ids: Sequence[str]) -> None:
        """Before these documents change: the KV of all their chunks may have to go."""
        if notes := await self.notes(scope, doc_ids):
            await asyncio.to_thread(self._receipts.owe, notes)

    async def note_gone(self, stored: Sequence[PurgeTarget]) -> None:
        """After KV was stored for chunks: what was deleted or replaced meanwhile has been stored
        for nobody."""
        alive = await self._retriever.alive([note.chunk_id for note in stored])
        if gone := [note for note in stored if note.chunk_id not in alive]:
            await asyncio.to_thread(self._receipts.owe, gone)

    async def make(self, receipt_id: str | None = None) -> None:
        """Make the purges that are due (of one receipt).

        Raises WorkerUnavailable, TierUnreached, and whatever the worker refuses it with; the notes
        then remain.
        """
        async with self._calling:
            made = False
            while due := await self._due(receipt_id):
                made = True
                for (tenant, owner), group in groupby(due, lambda p: (p.tenant, p.receipt_id)):
                    await self._make(tenant, owner, list(group))
        if made:
            # Ids are text for whoever has the tokenizer.
            await asyncio.to_thread(self._receipts.scrub)

    async def _make(self, tenant: str, receipt_id: str | None, due: list[PendingPurge]) -> None:
        chunks = [Chunk(purge.chunk_id, purge.ids) for purge in due]
        done = await self._worker.purge(
            self._prompts.system, chunks, self._prompts.prefix_mode, tenant
        )
        if not done.unreached:
            await asyncio.to_thread(self._receipts.settle, due, done.copies)
            return
        names = ", ".join(done.unreached)
        await asyncio.to_thread(
            self._receipts.unreached, receipt_id, done.copies, sorted(done.unreached)
        )
        raise TierUnreached(f"deleted KV may still be in {names}, which cannot be reached")

    async def _due(self, receipt_id: str | None) -> list[PendingPurge]:
        """Purges to make now, sorted by tenant and receipt. Notes that turned out not to be due
        are settled.

        A chunk that is still there, or whose ids another chunk has (in the document's new revision
        or in another document of the tenant), keeps its KV: the key is its content.
        """
        due: list[PendingPurge] = []
        while not due:
            async with self.changing:
                limit = CALL_CHUNKS + len(self.computing)
                owed = await asyncio.to_thread(self._receipts.owed, limit, receipt_id)
                owed = [purge for purge in owed if purge.chunk_id not in self.computing]
                if not owed:
                    break
                alive = await self._retriever.alive([purge.chunk_id for purge in owed])
                due = [
                    purge
                    for purge in owed
                    if purge.chunk_id not in alive and not await self._shared(purge)
                ]
                gone = [purge.chunk_id for purge in owed if purge.chunk_id not in alive]
                await asyncio.to_thread(self._receipts.forget_contents, gone)
                moot = [purge for purge in owed if purge not in due]
                await asyncio.to_thread(self._receipts.settle, moot, {})
        return sorted(due, key=lambda purge: (purge.tenant, purge.receipt_id or ""))

    async def _shared(self, purge: PendingPurge) -> bool:
        """Whether a chunk that is still there has the same content."""
        scope = Scope(purge.tenant, purge.collection)
        own = await self._retriever.chunks_of(purge.doc_id, scope=scope)
        if any(self._prompts.segment(chunk) == purge.ids for chunk in own):
            return True
        same = await asyncio.to_thread(self._receipts.same_content, purge.tenant, purge.ids)
        others = [chunk_id for chunk_id in same if chunk_id != purge.chunk_id]
        return bool(others) and bool(await self._retriever.alive(others))
