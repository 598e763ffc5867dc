"""The second stage of ingestion: has the KV of documents stored that were indexed.

See document_queue.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from retriever import Scope
from service.errors import WorkerUnavailable
from service.gateway.documents.chunk_kv import ChunkKV, ChunkKVs
from service.gateway.documents.jobs.document_queue import DocumentQueue
from service.gateway.documents.jobs.job_records import IngestDocument
from service.gateway.documents.kv_storing import BATCH_CHUNKS, BatchProgress, KvStoring, slices

# Many documents, so that enough chunks with the same prefix are computed together.
STORED_DOCUMENTS = 256
PASS_CHUNKS = 256  # of one document whose KV is stored before others have their turn
MAX_CRASHES = 3  # a document during which the worker died this often fails


class KvStage:
    """Has the KV of a queue's indexed documents stored, a batch at a time. A batch of which none
    could be stored, perhaps because a tier is away, is tried again after `wait_again_s`."""

    def __init__(
        self,
        queue: DocumentQueue,
        chunks: ChunkKVs,
        storing: KvStoring,
        *,
        wait_again_s: Sequence[float] = (),
    ) -> None:
        self._queue = queue
        self._chunks = chunks
        self._kv = storing
        self._waits = iter(wait_again_s)
        self._crashes: Counter[int] = Counter()  # by number of the document
        self._storing: asyncio.Task[None] | None = None
        self._storing_jobs: set[str] = set()
        # Chunks of long documents whose KV is stored in the next passes, by number.
        self._rest: dict[int, list[ChunkKV]] = {}

    async def cancel(self, job_id: str, indexed: Sequence[tuple[Scope, str]]) -> None:
        """End what is being done for the documents of a job, which are cancelled already; of these
        some were indexed, but not done."""
        if self._storing is not None and job_id in self._storing_jobs:
            self._storing.cancel()  # what is left of the batch for other jobs is begun again
        await self._chunks.leave(indexed)

    async def store_batch(self) -> bool:
        """Have the KV of some indexed documents stored; False if there were none. How often the
        worker dies of a document (WorkerUnavailable) is counted."""
        # One by one after a crash, so that a document that kills the worker does not block others.
        limit = 1 if self._crashes else STORED_DOCUMENTS
        batch = await asyncio.to_thread(self._queue.indexed, limit)
        if not batch:
            self._crashes.clear()  # of documents that were cancelled
            return False
        if len(batch) < limit:  # of documents that were cancelled
            self._rest = {n: self._rest[n] for n in self._rest.keys() & {i.number for i in batch}}
        self._storing_jobs = {item.job_id for item in batch}
        storing = self._storing = asyncio.create_task(self._store_kv(batch))
        try:
            await asyncio.wait([storing])
            if storing.cancelled():  # what is stored of the others is found so
                self._rest.clear()
            else:
                storing.result()
        except WorkerUnavailable:
            self._rest.clear()
            await self._count_crash(batch)
            raise
        except BaseException:
            self._rest.clear()
            raise
        finally:
            storing.cancel()
            await asyncio.gather(storing, return_exceptions=True)
        return True

    async def _store_kv(self, batch: Sequence[IngestDocument]) -> None:
        work: list[tuple[int, ChunkKV]] = []

        async def finish(numbers: Sequence[int]) -> None:
            done = set(numbers)
            await self._kv.note_stored([c.chunk_id for number, c in work if number in done])
            await self._finish([number for number in numbers if number not in self._rest])

        progress = BatchProgress(finish)
        for scope, items in slices(sorted(batch, key=lambda item: item.number in self._rest)):
            if len(work) >= BATCH_CHUNKS:
                break  # the others are in the next batch
            fresh = dict.fromkeys(item.doc_id for item in items if item.number not in self._rest)
            to_store = await self._kv.to_store(scope, list(fresh)) if fresh else []
            for item in items:
                own = self._rest.pop(item.number, None) or [
                    chunk for chunk in to_store if chunk.doc_id == item.doc_id
                ]
                if own[PASS_CHUNKS:]:
                    self._rest[item.number], own = own[PASS_CHUNKS:], own[:PASS_CHUNKS]
                work += [(item.number, chunk) for chunk in own]
                progress.expect(item.number, sum(map(self._kv.count, own)))
        async with progress:
            await self._kv.store(work, progress)
        failed = [(i, progress.errors[i.number]) for i in batch if i.number in progress.errors]
        wait_s = next(self._waits, None) if len(failed) == len(progress.numbers) > 1 else None
        if wait_s is not None:
            self._rest.clear()
            await asyncio.sleep(wait_s)
            return
        for item, _ in failed:
            self._rest.pop(item.number, None)
            self._crashes.pop(item.number, None)
        await asyncio.to_thread(self._queue.set_failed, failed)

    async def _finish(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._crashes.pop(number, None)
        await asyncio.to_thread(self._queue.set_done, numbers)

    async def _count_crash(self, batch: Sequence[IngestDocument]) -> None:
        numbers = [item.number for item in batch]
        for number in await asyncio.to_thread(self._queue.still_in, "indexed", numbers):
            self._crashes[number] += 1
        given_up = [item for item in batch if self._crashes[item.number] >= MAX_CRASHES]
        await self._chunks.leave((item.scope, item.doc_id) for item in given_up)
        reason = f"the worker died {MAX_CRASHES} times while computing its KV"
        for item in given_up:
            self._crashes.pop(item.number)
        await asyncio.to_thread(self._queue.set_failed, [(i, reason) for i in given_up], "dead")
