"""Stores the KV of indexed documents, and makes the purges that are due.

    pending purges ── indexed documents ── pinned documents whose KV is gone ── wait

What is to be done is read from disk, so a restart simply continues. The worker finds a chunk whose
KV is stored already and does not compute it twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import groupby

from retriever import Scope
from service.errors import KvstitchError, Overloaded, WorkerUnavailable
from service.gateway.corpus.background_loop import BackgroundLoop
from service.gateway.corpus.corpus_gauges import CorpusGauges
from service.gateway.corpus.deletion_records import PurgeTarget
from service.gateway.corpus.job_records import SpooledDocument
from service.gateway.corpus.job_store import JobStore
from service.gateway.corpus.purge_queue import CHUNKS_PER_CALL, PurgeQueue
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.retrieval.async_retriever import AsyncRetriever
from service.gateway.worker_client.protocol import Worker
from service.messages import Chunk

BATCH_DOCUMENTS = 32
MAX_CRASHES = 3  # a document during which the worker died this often fails
POLL_S = 5.0  # for purges of tiers that could not be reached


class PrecomputeLoop:
    """Needs the worker, and waits for it."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        retriever: AsyncRetriever,
        worker: Worker,
        prompts: PromptBuilder,
        purges: PurgeQueue,
        gauges: CorpusGauges,
        pin_check_s: float,
    ) -> None:
        self._jobs = jobs
        self._retriever = retriever
        self._worker = worker
        self._prompts = prompts
        self._purges = purges
        self._gauges = gauges
        self._pin_check_s = pin_check_s
        self._pins_checked_at = float("-inf")
        self._crashes: Counter[int] = Counter()  # per document number
        self._loop = BackgroundLoop("precompute", self._step, POLL_S)

    def start(self) -> None:
        self._loop.start()

    def wake(self) -> None:
        """Documents were indexed, or purges were added."""
        self._loop.wake()

    async def close(self) -> None:
        await self._loop.close()

    def check_pins(self) -> None:
        """Check soon whether the KV of all pinned documents is stored."""
        self._pins_checked_at = float("-inf")
        self.wake()

    async def _step(self) -> bool:
        """Make the due purges, then store the KV of a batch; False if there was no batch."""
        await self._worker.wait_ready()
        await self._purges.run_due()
        # One by one after a crash, so that a document that kills the worker does not block others.
        limit = 1 if self._crashes else BATCH_DOCUMENTS
        batch = await asyncio.to_thread(self._jobs.indexed, limit)
        if not batch:
            self._crashes.clear()  # of documents that were cancelled
            await self._restore_pinned()
            return False
        try:
            await self._precompute(batch)
        except WorkerUnavailable:
            await self._count_crash(batch)
            raise
        await self._gauges.refresh()
        return True

    async def _precompute(self, batch: Sequence[SpooledDocument]) -> None:
        chunks_left: Counter[int] = Counter()
        errors: dict[int, str] = {}
        work: list[tuple[SpooledDocument, PurgeTarget]] = []
        for item in batch:
            scope = Scope(item.tenant, item.collection)
            for target in await self._purges.targets_of(scope, [item.doc_id]):
                work.append((item, target))
                chunks_left[item.number] += 1
        without_chunks = [item.number for item in batch if not chunks_left[item.number]]
        await self._finish(without_chunks, errors)
        for tenant, group in groupby(work, lambda pair: pair[0].tenant):
            of_tenant = list(group)
            for start in range(0, len(of_tenant), CHUNKS_PER_CALL):
                part = of_tenant[start : start + CHUNKS_PER_CALL]
                numbers = {target.chunk_id: item.number for item, target in part}
                try:
                    async with aclosing(self._store(tenant, [t for _, t in part])) as stored:
                        async for chunk_id, error in stored:
                            number = numbers[chunk_id]
                            chunks_left[number] -= 1
                            if error:
                                errors[number] = f"its KV was not stored: {error}"
                            if not chunks_left[number]:
                                await self._finish([number], errors)
                except (WorkerUnavailable, Overloaded):
                    raise
                except KvstitchError as error:
                    errors |= {item.number: error.message for item, _ in part}
                    await self._finish(sorted({item.number for item, _ in part}), errors)

    async def _store(
        self, tenant: str, targets: Sequence[PurgeTarget]
    ) -> AsyncGenerator[tuple[int, str], None]:
        """Have the KV of these chunks stored; yields (chunk_id, error or "") of each."""
        chunks = [Chunk(target.chunk_id, target.ids) for target in targets]
        async with self._purges.storing(targets):
            replies = self._worker.precompute(
                self._prompts.system, chunks, self._prompts.prefix_mode, tenant
            )
            async for reply in replies:
                yield reply.chunk_id, reply.message if reply.status == "failed" else ""

    async def _restore_pinned(self) -> None:
        """Compute again what a tier has evicted of pinned documents."""
        if time.monotonic() - self._pins_checked_at < self._pin_check_s:
            return
        for scope, doc_id in await self._retriever.pinned():
            targets = await self._purges.targets_of(scope, [doc_id])
            for start in range(0, len(targets), CHUNKS_PER_CALL):
                async for _ in self._store(scope.tenant, targets[start : start + CHUNKS_PER_CALL]):
                    pass
        self._pins_checked_at = time.monotonic()

    async def _finish(self, numbers: Sequence[int], errors: dict[int, str]) -> None:
        failed = [(n, errors[n]) for n in numbers if n in errors]
        done = [n for n in numbers if n not in errors]
        for number in numbers:
            self._crashes.pop(number, None)
        await asyncio.to_thread(self._jobs.set_failed, failed)
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
