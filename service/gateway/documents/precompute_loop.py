"""Stores the KV of indexed documents, and makes the purges that are due.

    pending purges ── indexed documents ── what stands behind others ── pinned documents ── wait

A chunk that is computed behind other chunks (prefix modes primer and neighbours) is computed behind
S alone, too, for prompts that begin with it; that is done when its document is done already.

What is to be done is read from disk, so a restart simply continues. The worker finds a chunk whose
KV is stored already and does not compute it twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from retriever import Scope
from service.errors import (
    DatabaseUnavailable,
    DiskFull,
    KvstitchError,
    Overloaded,
    TierUnreached,
    WorkerUnavailable,
)
from service.gateway.documents.background_loop import BackgroundLoop
from service.gateway.documents.corpus_gauges import CorpusGauges
from service.gateway.documents.deletion_records import ChunkKV
from service.gateway.documents.jobs.job_records import SpooledDocument
from service.gateway.documents.jobs.job_store import JobStore
from service.gateway.documents.precompute_calls import (
    BATCH_CHUNKS,
    CALLS_UNDER_WAY,
    BatchProgress,
    FinishedDocuments,
    calls,
    slices,
)
from service.gateway.documents.purge_queue import PurgeQueue
from service.gateway.documents.side_by_side import side_by_side
from service.gateway.documents.token_rate import TokenRate
from service.gateway.prompts.precomputed_behind import PrecomputedBehind
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.retrieval.async_retriever import AsyncRetriever
from service.gateway.worker_client.protocol import Worker
from service.messages.requests import ChunkTokens

logger = logging.getLogger(__name__)

# Many documents, so that of those behind the same companions enough are computed together.
BATCH_DOCUMENTS = 256
MAX_CRASHES = 3  # a document during which the worker died this often fails
ENOUGH_INDEXED = 256  # documents to choose companions among, while more are being indexed
POLL_S = 5.0  # for purges of tiers that could not be reached


class PrecomputeLoop:
    """Needs the worker, and waits for it.

    Args:
        loras: The LoRA adapters with which chunks are computed, besides the base model.

    Attributes:
        complete: Whether nothing is left to compute of documents that are done.
    """

    def __init__(
        self,
        *,
        jobs: JobStore,
        retriever: AsyncRetriever,
        worker: Worker,
        prompts: PromptBuilder,
        behind: PrecomputedBehind,
        purges: PurgeQueue,
        gauges: CorpusGauges,
        rate: TokenRate,
        pin_check_s: float,
        loras: Sequence[str] = (),
    ) -> None:
        self._models = ("", *loras)  # "" is the base model
        self._rate = rate
        self._jobs = jobs
        self._behind = behind
        self._retriever = retriever
        self._worker = worker
        self._prompts = prompts
        self._purges = purges
        self._gauges = gauges
        self._pin_check_s = pin_check_s
        self._pins_checked_at = float("-inf")
        self._crashes: Counter[int] = Counter()  # per document number
        self._failures: Counter[tuple[Scope, str]] = Counter()  # per document that is done
        self.complete = behind.kind is None
        self._loop = BackgroundLoop("precompute", self._step, POLL_S)

    def start(self) -> None:
        self._loop.start()

    def wake(self) -> None:
        """Documents were indexed, or purges were added."""
        self.complete = self._behind.kind is None
        self._loop.wake()

    async def close(self) -> None:
        await self._loop.close()

    def check_pins(self) -> None:
        """Check soon whether the KV of all pinned documents is stored."""
        self._pins_checked_at = float("-inf")
        self.wake()

    async def _step(self) -> bool:
        """Make the due purges, then store the KV of a batch; False if there was no batch.

        Raises:
            WorkerUnavailable: No worker can compute, or purges are owed and there was no batch.
        """
        max_context = (await self._worker.wait_ready()).model.max_context
        owed: WorkerUnavailable | None = None
        try:
            if await self._purges.run_due():
                self.complete = self._behind.kind is None
        except WorkerUnavailable as error:  # TierUnreached, too
            # What one worker or tier still owes is tried again, and keeps no document waiting.
            owed = error
            await self._worker.wait_ready()  # of one worker, it may have ended just now
        if not await self._store_batch(max_context):
            if owed is not None:
                raise owed
            return False
        return True

    async def _store_batch(self, max_context: int) -> bool:
        if self._behind.kind is not None and await asyncio.to_thread(self._more_to_come):
            return False
        # One by one after a crash, so that a document that kills the worker does not block others.
        limit = 1 if self._crashes else BATCH_DOCUMENTS
        batch = await asyncio.to_thread(self._jobs.indexed, limit)
        if not batch:
            self._rate.end()
            self._crashes.clear()  # of documents that were cancelled
            if await self._complete(max_context):
                return True
            await self._restore_pinned(max_context)
            return False
        self._rate.begin()
        try:
            await self._precompute(batch, max_context)
        except WorkerUnavailable:
            await self._count_crash(batch)
            raise
        self.complete = self._behind.kind is None
        await self._gauges.refresh()
        return True

    def _more_to_come(self) -> bool:
        """Whether documents are being indexed that others should stand behind."""
        few = len(self._jobs.indexed(ENOUGH_INDEXED)) < ENOUGH_INDEXED
        return few and bool(self._jobs.pending(1, 1))

    async def _precompute(self, batch: Sequence[SpooledDocument], max_context: int) -> None:
        progress = BatchProgress()
        work: list[tuple[SpooledDocument, ChunkKV]] = []
        for scope, items in slices(batch):
            if len(work) >= BATCH_CHUNKS:
                break  # the others are in the next batch
            doc_ids = list(dict.fromkeys(item.doc_id for item in items))
            targets = await self._purges.with_companions(scope, doc_ids, max_context)
            for item in items:
                own = [target for target in targets if target.doc_id == item.doc_id]
                work += [(item, target) for target in own]
                progress.chunks_left[item.number] = sum(map(self._copies, own))
        empty = [number for number, chunks in progress.chunks_left.items() if not chunks]
        await self._finish(empty, progress.errors)
        async with FinishedDocuments(partial(self._finish, errors=progress.errors)) as finished:
            await side_by_side(
                [
                    partial(self._call, tenant, part, progress, finished)
                    for tenant, part in calls(work, lambda pair: pair[1])
                ],
                CALLS_UNDER_WAY,
            )

    async def _call(
        self,
        tenant: str,
        part: Sequence[tuple[SpooledDocument, ChunkKV]],
        progress: BatchProgress,
        finished: FinishedDocuments,
    ) -> None:
        """One call of the worker: have these chunks stored."""
        numbers = {target.chunk_id: item.number for item, target in part}
        tokens = {t.chunk_id: len(t.ids) / self._copies(t) for _, t in part}
        try:
            async with aclosing(self._store(tenant, [t for _, t in part])) as stored:
                async for chunk_id, error in stored:
                    number = numbers[chunk_id]
                    progress.chunks_left[number] -= 1
                    self._rate.add(tokens[chunk_id])
                    if error:
                        progress.errors[number] = f"its KV was not stored: {error}"
                    if not progress.chunks_left[number]:
                        finished.add(number)
        except (WorkerUnavailable, Overloaded, DatabaseUnavailable):
            raise
        except KvstitchError as error:
            for number in sorted(set(numbers.values())):
                progress.errors[number] = error.message
                finished.add(number)

    async def _store(
        self, tenant: str, targets: Sequence[ChunkKV]
    ) -> AsyncGenerator[tuple[int, str], None]:
        """Have the KV of these chunks stored; yields (chunk_id, error or "") of each copy.

        Args:
            targets: Each with its copy behind others, if it has one.
        """
        wanted = [chunk for target in targets for chunk in self._wanted(target)]
        chunks = sorted(wanted, key=lambda chunk: bool(chunk.behind))  # those alone come first
        async with self._purges.storing(targets):
            for lora in self._models:
                replies = self._worker.precompute(
                    self._prompts.system, chunks, self._prompts.prefix_mode, tenant, lora
                )
                async for reply in replies:
                    yield reply.chunk_id, reply.message if reply.status == "failed" else ""

    def _copies(self, target: ChunkKV) -> int:
        """How many chunks are stored of one before its document is done."""
        return len(self._wanted(target)) * len(self._models)

    def _wanted(self, target: ChunkKV) -> list[ChunkTokens]:
        """What is to be stored of a chunk before its document is done.

        A chunk behind neighbours is put together from these, so all chunks are needed alone.
        """
        alone = ChunkTokens(target.chunk_id, target.ids)
        if not target.copies:
            return [alone]
        return [*([alone] if self._behind.kind == "neighbours" else []), *target.copies]

    async def _complete(self, max_context: int) -> bool:
        """Store what is missing of documents that stand behind others; False if nothing is.

        Companions may have been deleted, or the prefix mode may be a new one.
        """
        if self.complete:
            return False
        # One by one after a failure, as above.
        limit = 1 if self._failures else BATCH_DOCUMENTS
        documents = await self._retriever.run_blocking(lambda: self._behind.open(limit))
        try:
            await self._store_all(documents, max_context)
        except (Overloaded, DiskFull, TierUnreached, DatabaseUnavailable):
            raise
        except KvstitchError as error:
            self._failures.update(documents)
            for scope, doc_id in documents:
                if self._failures[scope, doc_id] >= MAX_CRASHES:
                    await self._give_up(scope, doc_id, error)
                    del self._failures[scope, doc_id]
            raise
        for document in documents or list(self._failures):
            self._failures.pop(document, None)
        self.complete = not documents
        return bool(documents)

    async def _give_up(self, scope: Scope, doc_id: str, error: KvstitchError) -> None:
        """Leave a document as it is that fails, or kills the worker, every time."""
        logger.warning("document %s is not stored completely: %s", doc_id, error)
        chunk_ids = [target.chunk_id for target in await self._purges.targets_of(scope, [doc_id])]
        await self._retriever.change(partial(self._behind.set_exact, chunk_ids))

    async def _store_all(self, documents: Sequence[tuple[Scope, str]], max_context: int) -> None:
        """Documents behind their companions, those that have any, and behind S alone.

        Of very many chunks only the first documents' are stored.
        """
        targets: list[ChunkKV] = []
        for scope, doc_id in documents:
            if len(targets) >= BATCH_CHUNKS:
                break
            targets += await self._purges.with_companions(scope, [doc_id], max_context)
        for tenant, part in calls(targets, lambda target: target):
            alone = [replace(target, copies=[]) for target in part if target.copies]
            failed = {
                chunk_id: error
                for wanted in (part, alone)
                async for chunk_id, error in self._store(tenant, wanted)
                if error
            }
            for doc_id in sorted({t.doc_id for t in part if t.chunk_id in failed}):
                logger.warning("document %s is not stored completely: %s", doc_id, failed)
            if self._behind.kind is not None:
                chunk_ids = [target.chunk_id for target in part]
                await self._retriever.change(partial(self._behind.set_exact, chunk_ids))

    async def _restore_pinned(self, max_context: int) -> None:
        """Compute again what a tier has evicted of pinned documents."""
        if time.monotonic() - self._pins_checked_at < self._pin_check_s:
            return
        for document in await self._retriever.pinned():
            await self._store_all([document], max_context)
        self._pins_checked_at = time.monotonic()

    async def _finish(self, numbers: Sequence[int], errors: dict[int, str]) -> None:
        failed = [(n, errors[n]) for n in numbers if n in errors]
        done = [n for n in numbers if n not in errors]
        for number in numbers:
            self._crashes.pop(number, None)
        if failed:
            await asyncio.to_thread(self._jobs.set_failed, failed)
        if done:
            await asyncio.to_thread(self._jobs.set_done, done)

    async def _count_crash(self, batch: Sequence[SpooledDocument]) -> None:
        numbers = [item.number for item in batch]
        for number in await asyncio.to_thread(self._jobs.still_in, "indexed", numbers):
            self._crashes[number] += 1
        given_up = [n for n in numbers if self._crashes[n] >= MAX_CRASHES]
        reason = f"the worker died {MAX_CRASHES} times while computing its KV"
        for number in given_up:
            self._crashes.pop(number)
        await asyncio.to_thread(self._jobs.set_failed, [(n, reason) for n in given_up], "dead")
