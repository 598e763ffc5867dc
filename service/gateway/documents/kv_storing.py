"""Has the worker compute and store the KV of chunks, and follows whose documents are done by it.

The worker has the next call's chunks before it has stored those of the one before: it never waits
for the gateway, and fills its batches across calls.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import groupby
from typing import Self, TypeVar

import msgspec

from retriever import Scope
from service.errors import DatabaseUnavailable, KvstitchError, Overloaded, WorkerUnavailable
from service.gateway.documents.background_loop import side_by_side
from service.gateway.documents.chunk_kv import ChunkKV, ChunkKVs
from service.gateway.documents.deletion.purge_queue import CHUNKS_PER_CALL, PurgeQueue
from service.gateway.documents.jobs.job_records import IngestDocument
from service.gateway.worker_client.protocol import Worker
from service.messages.replies import Precomputed
from service.messages.requests import ChunkTokens, Precompute

T = TypeVar("T")
OnReply = Callable[[Precomputed, str, float], None]
Numbered = tuple[int, ChunkKV]
"""The number of a document, and one of its chunks."""

CALLS_UNDER_WAY = 2
BATCH_CHUNKS = 1024  # of which the batch's last document has the last; bounds memory
# Documents whose prefixes are chosen at a time: deletions wait for that.
CHOOSING_DOCUMENTS = 32


class BatchProgress:
    """Of a batch of documents: how many chunks of each are left, and what failed."""

    def __init__(self, note_done: Callable[[Sequence[int]], Awaitable[None]]) -> None:
        self.numbers: set[int] = set()
        self.errors: dict[int, str] = {}
        self._left: Counter[int] = Counter()
        self._note_done = note_done
        self._done: list[int] = []
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writing is not None:
            await self._writing

    def expect(self, number: int, chunks: int) -> None:
        """Add a document with so many chunks to store."""
        self.numbers.add(number)
        self._left[number] = chunks
        if not chunks:
            self._add_done(number)

    def chunk(self, number: int, error: str) -> None:
        """Note that a chunk of a document is stored, or the error."""
        self._left[number] -= 1
        if error:
            self.errors[number] = f"its KV was not stored: {error}"
        if not self._left[number] and number not in self.errors:
            self._add_done(number)

    def _add_done(self, number: int) -> None:
        self._done.append(number)
        if self._writing is None or self._writing.done():
            if self._writing is not None:
                self._writing.result()
            self._writing = asyncio.create_task(self._write_done())

    async def _write_done(self) -> None:
        while self._done:
            numbers, self._done = self._done, []
            await self._note_done(numbers)


class KvStoring:
    """Has KV stored by a worker, for the base model and these LoRA adapters. If `complete`, a
    document is done only when its chunks are stored without a prefix, too."""

    def __init__(
        self,
        worker: Worker,
        chunks: ChunkKVs,
        purges: PurgeQueue,
        *,
        loras: Sequence[str],
        on_reply: OnReply,
        complete: bool = False,
    ) -> None:
        self._worker = worker
        self._chunks = chunks
        self._purges = purges
        self._models = ("", *loras)
        self._on_reply = on_reply
        self._complete = complete

    async def note_stored(self, chunk_ids: Sequence[int]) -> None:
        """Note chunks of documents that are done."""
        if self._complete:
            await self._chunks.note_complete(chunk_ids)
        else:
            await self._chunks.note_made(chunk_ids)

    async def to_store(self, scope: Scope, doc_ids: Sequence[str]) -> list[ChunkKV]:
        """Return all chunks of these documents, each with its copy with a prefix if the prefix
        mode has such; copies with prefixes that were chosen earlier are purged."""
        ready = await self._worker.wait_ready()
        chunks, replaced = await self._chunks.to_store(scope, doc_ids, ready.model.max_context)
        await self._purges.add_kv(replaced)
        return chunks

    def count(self, chunk: ChunkKV) -> int:
        """Return how many times a chunk is stored before its document is done."""
        return len(self._wanted(chunk)) * len(self._models)

    async def store(self, work: Sequence[Numbered], progress: BatchProgress) -> None:
        """Have the KV of a batch stored; the same text is computed once. Raises WorkerUnavailable
        or Overloaded where the worker is away, or takes no more for the moment."""
        same: dict[object, list[Numbered]] = {}
        for number, chunk in work:
            text = chunk.chunk_id if chunk.copies else (chunk.tenant, tuple(chunk.ids))
            same.setdefault(text, []).append((number, chunk))
        await side_by_side(
            [
                partial(self._call, tenant, part, progress)
                for tenant, part in calls(list(same.values()), lambda group: group[0][1])
            ],
            CALLS_UNDER_WAY,
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
                    group = by_id[reply.chunk_id]
                    chunk = group[0][1]
                    self._on_reply(reply, lora, len(chunk.ids) / self.count(chunk))
                    error = reply.message if reply.status == "failed" else ""
                    for _, other in group[1:]:
                        status = "failed" if error else "present"
                        again = msgspec.structs.replace(
                            reply, chunk_id=other.chunk_id, status=status, bytes=0
                        )
                        self._on_reply(again, lora, 0.0)
                    for number, _ in group:
                        progress.chunk(number, error)
        except (WorkerUnavailable, Overloaded, DatabaseUnavailable):
            raise
        except KvstitchError as error:
            progress.errors.update((number, error.message) for group in part for number, _ in group)

    async def replies(
        self, tenant: str, chunks: Sequence[ChunkKV], same: Sequence[ChunkKV] = ()
    ) -> AsyncGenerator[tuple[str, Precomputed], None]:
        """Have the KV of a tenant's chunks stored, each with its copy with a prefix, if it has one;
        `same` have the same texts, and so the same KV. Yields (LoRA adapter, reply) per copy."""
        wanted = [copy for chunk in chunks for copy in self._wanted(chunk)]
        wanted.sort(key=lambda copy: bool(copy.behind))  # those without a prefix come first
        prompts = self._chunks.prompts
        async with self._purges.storing([*chunks, *same]):
            for lora in self._models:
                message = Precompute(
                    uuid.uuid4().hex, prompts.system, wanted, prompts.prefix_mode, tenant, lora
                )
                async for reply in self._worker.precompute(message):
                    yield lora, reply

    def _wanted(self, chunk: ChunkKV) -> list[ChunkTokens]:
        """Return what is stored of a chunk before its document is done."""
        alone = ChunkTokens(chunk.chunk_id, chunk.ids)
        if not chunk.copies:
            return [alone]
        needed = self._complete or self._chunks.prefixes.kind == "neighbours"
        return [*([alone] if needed else []), *chunk.copies]


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
