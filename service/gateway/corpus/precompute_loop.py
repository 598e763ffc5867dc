"""From indexed documents to their stored KV, and from deleted ones to none. Knows no HTTP.

    owed purges ── indexed documents ── pinned documents whose KV is gone ── wait

What to do is read from disk, so that a restart simply goes on; a chunk whose KV is stored is found
present and not computed twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import groupby

from retriever import Scope
from service.errors import KvstitchError, Overloaded, WorkerUnavailable
from service.gateway.corpus.background_loop import BackgroundLoop
from service.gateway.corpus.job_records import SpooledDocument
from service.gateway.corpus.job_store import JobStore
from service.gateway.corpus.purge_queue import CALL_CHUNKS, PurgeQueue
from service.gateway.corpus.receipt_store import PurgeTarget, ReceiptStore
from service.gateway.prompts.prompt_builder import PromptBuilder
from service.gateway.retrieval.async_retriever import AsyncRetriever
from service.gateway.worker_client.protocol import Worker
from service.messages import Chunk

BATCH_DOCUMENTS = 32
MAX_CRASHES = 3  # a document that was under way when the worker died this often is given up
LOOK_AGAIN_S = 5.0  # for purges of tiers that could not be reached


class PrecomputeLoop:
    """One loop; it needs the worker and waits for it."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        receipts: ReceiptStore,
        retriever: AsyncRetriever,
        worker: Worker,
        prompts: PromptBuilder,
        purges: PurgeQueue,
        pin_check_s: float,
        on_done: Callable[[], Awaitable[None]],
    ) -> None:
        self._jobs = jobs
        self._receipts = receipts
        self._retriever = retriever
        self._worker = worker
        self._prompts = prompts
        self._purges = purges
        self._pin_check_s = pin_check_s
        self._pins_checked = float("-inf")
        self._crashes: Counter[int] = Counter()
        self._loop = BackgroundLoop("computing", self._step, LOOK_AGAIN_S)
        self.wake = self._loop.wake
        self._on_done = on_done

    async def start(self) -> None:
        self._loop.start()

    async def close(self) -> None:
        await self._loop.close()

    def check_pins(self) -> None:
        """Look at once whether the KV of all pinned documents is stored."""
        self._pins_checked = float("-inf")
        self.wake.set()

    async def _step(self) -> bool:
        """Make the owed purges, then store the KV of some documents; False if there were none."""
        await self._worker.wait_ready()
        await self._purges.make()
        # After a crash one by one: the document that brings the worker down must not stop others.
        limit = 1 if self._crashes else BATCH_DOCUMENTS
        batch = await asyncio.to_thread(self._jobs.indexed, limit)
        if not batch:
            self._crashes.clear()  # of documents that were cancelled
            await self._restore_pinned()
            return False
        try:
            await self._precompute(batch)
        except WorkerUnavailable:
            await self._after_crash(batch)
            raise
        await self._on_done()
        return True

    async def _precompute(self, batch: Sequence[SpooledDocument]) -> None:
        left: Counter[int] = Counter()
        errors: dict[int, str] = {}
        work: list[tuple[SpooledDocument, PurgeTarget]] = []
        for item in batch:
            for note in await self._notes(Scope(item.tenant, item.collection), item.doc_id):
                work.append((item, note))
                left[item.number] += 1
        await self._finish([item.number for item in batch if not left[item.number]], errors)
        for tenant, group in groupby(work, lambda pair: pair[0].tenant):
            of_tenant = list(group)
            for start in range(0, len(of_tenant), CALL_CHUNKS):
                part = of_tenant[start : start + CALL_CHUNKS]
                numbers = {note.chunk_id: item.number for item, note in part}
                try:
                    async with aclosing(self._store(tenant, [n for _, n in part])) as stored:
                        async for chunk_id, error in stored:
                            number = numbers[chunk_id]
                            left[number] -= 1
                            if error:
                                errors[number] = f"its KV was not stored: {error}"
                            if not left[number]:
                                await self._finish([number], errors)
                except (WorkerUnavailable, Overloaded):
                    raise
                except KvstitchError as error:
                    errors |= {item.number: error.message for item, _ in part}
                    await self._finish(sorted({item.number for item, _ in part}), errors)

    async def _notes(self, scope: Scope, doc_id: str) -> list[PurgeTarget]:
        return await self._purges.notes(scope, [doc_id])

    async def _store(
        self, tenant: str, notes: Sequence[PurgeTarget]
    ) -> AsyncGenerator[tuple[int, str], None]:
        """Have the KV of these chunks stored: (chunk_id, error or nothing) of each, as it is."""
        contents = [(note.chunk_id, note.ids) for note in notes]
        await asyncio.to_thread(self._receipts.note_contents, tenant, contents)
        chunks = [Chunk(note.chunk_id, note.ids) for note in notes]
        self._purges.computing |= {note.chunk_id for note in notes}
        try:
            replies = self._worker.precompute(
                self._prompts.system, chunks, self._prompts.prefix_mode, tenant
            )
            async for reply in replies:
                yield reply.chunk_id, reply.message if reply.status == "failed" else ""
        finally:
            self._purges.computing -= {note.chunk_id for note in notes}
            await self._purges.note_gone(notes)

    async def _restore_pinned(self) -> None:
        """What a tier has evicted of pinned documents is computed again."""
        if time.monotonic() - self._pins_checked < self._pin_check_s:
            return
        for scope, doc_id in await self._retriever.pinned():
            notes = await self._notes(scope, doc_id)
            for start in range(0, len(notes), CALL_CHUNKS):
                async for _ in self._store(scope.tenant, notes[start : start + CALL_CHUNKS]):
                    pass
        self._pins_checked = time.monotonic()

    async def _finish(self, numbers: Sequence[int], errors: dict[int, str]) -> None:
        failed = [(n, errors[n]) for n in numbers if n in errors]
        done = [n for n in numbers if n not in errors]
        for number in numbers:
            self._crashes.pop(number, None)
        await asyncio.to_thread(self._jobs.set_failed, failed)
        await asyncio.to_thread(self._jobs.set_done, done)

    async def _after_crash(self, batch: Sequence[SpooledDocument]) -> None:
        numbers = [item.number for item in batch]
        for number in await asyncio.to_thread(self._jobs.still, "indexed", numbers):
            self._crashes[number] += 1
        given_up = [n for n in numbers if self._crashes[n] >= MAX_CRASHES]
        reason = f"the worker died {MAX_CRASHES} times while computing its KV"
        for number in given_up:
            self._crashes.pop(number)
        await asyncio.to_thread(self._jobs.set_failed, [(n, reason) for n in given_up], "dead")
