"""The second stage of ingestion: has the worker compute and store the KV of indexed documents.

The worker has the next call's chunks before it has stored those of the one before: it never waits
for the gateway, and fills its batches across calls.
"""

import asyncio
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import groupby
from typing import TypeVar

import msgspec

from kvstitch.retriever import Scope
from kvstitch.service.errors import (
    DatabaseUnavailable,
    KvstitchError,
    Overloaded,
    WorkerUnavailable,
)
from kvstitch.service.gateway.documents.background_loop import BatchProgress, side_by_side
from kvstitch.service.gateway.documents.chunk_kv import ChunkKV, ChunkKVs
from kvstitch.service.gateway.documents.deletion.purge_queue import CHUNKS_PER_CALL, PurgeQueue
from kvstitch.service.gateway.documents.jobs.document_queue import DocumentQueue
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.gateway.fleet.worker_pool import Worker
from kvstitch.service.messages.replies import Precomputed
from kvstitch.service.messages.requests import Precompute

T = TypeVar("T")
Numbered = tuple[int, ChunkKV]
"""The number of a document, and one of its chunks."""

# Many documents, so that enough chunks with the same prefix are computed together.
STORED_DOCUMENTS = 256
PASS_CHUNKS = 256  # of one document whose KV is stored before others have their turn
MAX_CRASHES = 3  # a document during which the worker died this often fails
CALLS_UNDER_WAY = 2
BATCH_CHUNKS = 1024  # of which the batch's last document has the last; bounds memory
# Documents whose prefixes are chosen at a time: deletions wait for that.
CHOOSING_DOCUMENTS = 32


class KvStage:
    """Has the KV of a queue's indexed documents stored, a batch at a time, for the base model and
    these LoRA adapters. If `complete`, a document is done only when its chunks are stored without a
    prefix, too. A batch of which none could be stored, perhaps because a tier is away, is tried
    again after `wait_again_s`."""

    def __init__(
        self,
        queue: DocumentQueue,
        worker: Worker,
        chunks: ChunkKVs,
        purges: PurgeQueue,
        *,
        loras: Sequence[str],
        on_reply: Callable[[Precomputed, str, float], None],
        complete: bool = False,
        wait_again_s: Sequence[float] = (),
    ) -> None:
        self._queue = queue
        self._worker = worker
        self._chunks = chunks
        self._purges = purges
        self._models = ("", *loras)
        self._on_reply = on_reply
        self._complete = complete
        # Whether chunks are stored without a prefix, too, before their documents are done.
        self._alone = complete or chunks.prefixes.kind == "neighbours"
        self._waits = iter(wait_again_s)
        self._crashes: Counter[int] = Counter()  # by number of the document
        self._storing: asyncio.Task[None] | None = None
        self._storing_jobs: set[str] = set()
        # Chunks of long documents whose KV is stored in the next passes, by number.
        self._rest: dict[int, list[ChunkKV]] = {}
        # Tokens that are stored of documents that are not done, by number.
        self._stored: defaultdict[int, float] = defaultdict(float)
        self._unchanged: set[int] = set()  # documents that nothing is expected to be stored of

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
        except BaseException as error:
            self._rest.clear()
            if isinstance(error, WorkerUnavailable):
                await self._count_crash(batch)
            raise
        finally:
            storing.cancel()
            await asyncio.gather(storing, return_exceptions=True)
        return True

    def stored_until(self, number: int) -> float:
        """Return how many tokens are stored of documents up to this one that are not done."""
        return sum(tokens for other, tokens in self._stored.items() if other <= number)

    async def to_store(self, scope: Scope, doc_ids: Sequence[str]) -> list[ChunkKV]:
        """Return all chunks of these documents, each with its copy with a prefix if the prefix
        mode has such; copies with prefixes that were chosen earlier are purged."""
        ready = await self._worker.wait_ready()
        chunks, replaced = await self._chunks.to_store(scope, doc_ids, ready.model.max_context)
        await self._purges.add_kv(replaced)
        return chunks

    async def replies(
        self,
        tenant: str,
        chunks: Sequence[ChunkKV],
        same: Sequence[ChunkKV] = (),
        *,
        complete: bool = False,
    ) -> AsyncGenerator[tuple[str, Precomputed], None]:
        """Have the KV of a tenant's chunks stored, each with its copy with a prefix, if it has one;
        `same` have the same texts, and so the same KV. Yields (LoRA adapter, reply) per copy."""
        alone = complete or self._alone
        wanted = [copy for chunk in chunks for copy in chunk.stored_copies(alone=alone)]
        wanted.sort(key=lambda copy: bool(copy.behind))  # those without a prefix come first
        prompts = self._chunks.prompts
        async with self._purges.storing([*chunks, *same]):
            for lora in self._models:
                message = Precompute(
                    uuid.uuid4().hex, prompts.system, wanted, prompts.prefix_mode, tenant, lora
                )
                async for reply in self._worker.precompute(message):
                    yield lora, reply

    async def _store_kv(self, batch: Sequence[IngestDocument]) -> None:
        work: list[Numbered] = []
        self._unchanged = {item.number for item in batch if item.change == "unchanged"}

        async def finish(numbers: Sequence[int]) -> None:
            stored = set(numbers)
            chunk_ids = [chunk.chunk_id for number, chunk in work if number in stored]
            await self._chunks.note_stored(chunk_ids, complete=self._complete)
            done = [number for number in numbers if number not in self._rest]
            for number in done:
                self._crashes.pop(number, None)
            await asyncio.to_thread(self._queue.set_done, done)
            for number in done:
                self._stored.pop(number, None)

        progress = BatchProgress(finish)
        for number in self._stored.keys() - self._rest.keys():
            del self._stored[number]
        for scope, items in slices(sorted(batch, key=lambda item: item.number in self._rest)):
            if len(work) >= BATCH_CHUNKS:
                break  # the others are in the next batch
            fresh = dict.fromkeys(item.doc_id for item in items if item.number not in self._rest)
            to_store = await self.to_store(scope, list(fresh)) if fresh else []
            for item in items:
                own = self._rest.pop(item.number, None) or [
                    chunk for chunk in to_store if chunk.doc_id == item.doc_id
                ]
                if own[PASS_CHUNKS:]:
                    self._rest[item.number], own = own[PASS_CHUNKS:], own[:PASS_CHUNKS]
                work += [(item.number, chunk) for chunk in own]
                copies = sum(len(chunk.stored_copies(alone=self._alone)) for chunk in own)
                progress.expect(item.number, copies * len(self._models))
        async with progress:
            await self._store(work, progress)
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

    async def _store(self, work: Sequence[Numbered], progress: BatchProgress) -> None:
        """Have the KV of a batch stored; the same text is computed once. Raises WorkerUnavailable
        or Overloaded where the worker is away, or takes no more for the moment."""
        same: dict[object, list[Numbered]] = {}
        for number, chunk in work:
            text = chunk.chunk_id if chunk.copies else (chunk.tenant, tuple(chunk.ids))
            same.setdefault(text, []).append((number, chunk))
        parts = calls(list(same.values()), lambda group: group[0][1])
        await side_by_side(
            [partial(self._call, tenant, part, progress) for tenant, part in parts], CALLS_UNDER_WAY
        )

    async def _call(
        self, tenant: str, part: Sequence[list[Numbered]], progress: BatchProgress
    ) -> None:
        """Make one call of the worker, for chunks each with others of the same text."""
        by_id = {group[0][1].chunk_id: group for group in part}
        first = [group[0][1] for group in part]
        same = [chunk for group in part for _, chunk in group[1:]]
        try:
            async with aclosing(self.replies(tenant, first, same)) as replies:
                async for lora, reply in replies:
                    (_, chunk), *others = by_id[reply.chunk_id]
                    copies = len(chunk.stored_copies(alone=self._alone)) * len(self._models)
                    tokens = len(chunk.ids) / copies
                    self._on_reply(reply, lora, tokens)
                    error = reply.message if reply.status == "failed" else ""
                    status = "failed" if error else "present"
                    for _, other in others:
                        again = msgspec.structs.replace(
                            reply, chunk_id=other.chunk_id, status=status, bytes=0
                        )
                        self._on_reply(again, lora, 0.0)
                    for number, _ in by_id[reply.chunk_id]:
                        self._stored[number] += 0.0 if number in self._unchanged else tokens
                        progress.chunk(number, error)
        except (WorkerUnavailable, Overloaded, DatabaseUnavailable):
            raise
        except KvstitchError as error:
            progress.errors.update((number, error.message) for group in part for number, _ in group)

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


def slices(batch: Sequence[IngestDocument]) -> Iterator[tuple[Scope, list[IngestDocument]]]:
    """Yield neighbouring documents of a scope, few at a time, with few chunks unless one has
    many."""
    part: list[IngestDocument] = []
    chunks = 0
    for item in batch:
        full = len(part) == CHOOSING_DOCUMENTS or chunks + item.chunks > BATCH_CHUNKS
        if part and (full or part[0].key[:2] != item.key[:2]):
            yield Scope(*part[0].key[:2]), part
            part, chunks = [], 0
        part.append(item)
        chunks += item.chunks
    if part:
        yield Scope(*part[0].key[:2]), part


def calls(items: Sequence[T], chunk_of: Callable[[T], ChunkKV]) -> Iterator[tuple[str, list[T]]]:
    """Yield the worker's calls for these chunks, each with its tenant."""

    def order(item: T) -> tuple[str, list[list[int]]]:
        chunk = chunk_of(item)
        return chunk.tenant, [
            ids for copy in chunk.copies for prefix in copy.prefixes for ids in prefix
        ]

    ordered = sorted(items, key=order)
    for tenant, group in groupby(ordered, lambda item: chunk_of(item).tenant):
        of_tenant = list(group)
        for start in range(0, len(of_tenant), CHUNKS_PER_CALL):
            yield tenant, of_tenant[start : start + CHUNKS_PER_CALL]
