"""Ingests one range: a slice of its documents is indexed while the KV of the one before is stored.

    read ── slices ── parse, embed ── catalog ──┬── queue ──┬── KV, by the worker process ── counts
                                                └ meanwhile ┘

What is wrong with a document is counted and remembered, and the others go on. What is wrong with
the database or the worker is waited for; if it does not pass, the range is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from retriever import IngestResult
from service.bulk.corpus_access import CorpusAccess
from service.bulk.documents import DocumentReader
from service.bulk.records import Counts, Range
from service.errors import (
    DatabaseUnavailable,
    InternalError,
    KvstitchError,
    Overloaded,
    WorkerUnavailable,
)
from service.gateway.documents.deletion_records import ChunkKV
from service.gateway.documents.document_indexer import until_repetition
from service.gateway.documents.jobs.job_records import SpooledDocument
from service.gateway.documents.jobs.stored_sizes import record_sizes
from service.gateway.documents.precompute_calls import CALLS_UNDER_WAY
from service.gateway.documents.purge_queue import CHUNKS_PER_CALL
from service.gateway.documents.side_by_side import side_by_side
from service.messages.requests import ChunkTokens

logger = logging.getLogger(__name__)

T = TypeVar("T")
Text = tuple[str, tuple[int, ...]]
"""A tenant, and the token ids of a chunk: what its KV is stored under."""

SLICE_DOCUMENTS = 64
SLICE_BYTES = 1 << 20
MAX_CRASHES = 3  # a document during which the worker died this often fails
WAITS_S = (1.0, 4.0, 16.0)  # before a slice is tried again that the tiers or the database refused


@dataclass
class _Indexed:
    """A document in the catalog, and what is still to be stored of it."""

    doc_id: str
    targets: list[ChunkKV]
    tokens: int
    error: str = ""


@dataclass
class _RangeState:
    """Of the range under way.

    Attributes:
        counts: What it has come to.
        stored: Texts that the tiers hold, of this range.
        counted: Chunks that are in the counts, by adapter; a retry finds them again.
    """

    counts: Counts
    stored: set[Text] = field(default_factory=set)
    counted: set[tuple[int, str]] = field(default_factory=set)

    def count(self, chunk_id: int, lora: str, status: str, size: int) -> None:
        """The tiers hold a chunk: it was stored just now, or was present."""
        if (chunk_id, lora) in self.counted:
            return
        self.counted.add((chunk_id, lora))
        self.counts.bytes += size if status == "stored" else 0
        self.counts.stored += status == "stored"
        self.counts.present += status == "present"


class RangeIngest:
    """Ingests ranges with one worker process, one after the other."""

    def __init__(self, corpus: CorpusAccess, reader: DocumentReader) -> None:
        self._corpus = corpus
        self._reader = reader
        self._models = ("", *corpus.settings.precomputed_loras)

    async def ingest(self, part: Range, counts: Counts) -> None:
        """Index all documents of a range and have their KV stored.

        Args:
            counts: Empty; filled as it goes on.

        Raises:
            KvstitchError: The range cannot be done now.
        """
        await self._corpus.process.ready()
        queue: asyncio.Queue[list[_Indexed] | None] = asyncio.Queue(1)
        state = _RangeState(counts)

        async def index() -> None:
            async for items in self._slices(part, counts):
                await queue.put(await _again(partial(self._index, items, counts)))
            await queue.put(None)

        async def store() -> None:
            while (indexed := await queue.get()) is not None:
                await self._store(indexed, state)

        await side_by_side([index, store], 2)

    async def _slices(self, part: Range, counts: Counts) -> AsyncIterator[list[SpooledDocument]]:
        """Documents that could be read, some at a time, none twice in a slice."""
        read = iter(self._reader.read(part))
        while True:
            items, unread, more = await asyncio.to_thread(_take, read)
            for place, message in unread:
                counts.fail(place, message)
            while items:
                first = until_repetition(items)
                items = items[len(first) :]
                yield first
            if not more:
                return

    async def _index(self, items: Sequence[SpooledDocument], counts: Counts) -> list[_Indexed]:
        indexer = self._corpus.indexer
        parsed, failed = await indexer.parse(items)
        embedded = await indexer.embed(parsed)
        async with self._corpus.purges.catalog_lock:
            results = await indexer.store(embedded)
        stored = [item for item, result in results if result.error is None]
        await asyncio.to_thread(record_sizes, self._corpus.jobs, stored)
        names = {item.number: item.doc_id for item in items}
        for number, message in failed:
            counts.fail(names[number], message)
        for item, result in results:
            if result.error is not None:
                counts.fail(item.doc_id, str(result.error))
        indexed = await asyncio.to_thread(self._targets, results)
        for document in indexed:
            counts.chunks += len(document.targets)
            counts.tokens += document.tokens
        return indexed

    def _targets(self, results: Sequence[tuple[SpooledDocument, IngestResult]]) -> list[_Indexed]:
        """What is to be stored, as gateways encode it."""
        segment = self._corpus.prompts.segment
        return [
            _Indexed(
                item.doc_id,
                [ChunkKV(*item.key, chunk.chunk_id, segment(chunk)) for chunk in result.chunks],
                sum(chunk.tokens for chunk in result.chunks),
            )
            for item, result in results
            if result.error is None
        ]

    # -- KV --------------------------------------------------------------------------------------

    async def _store(self, indexed: Sequence[_Indexed], state: _RangeState) -> None:
        """Have the KV of a slice stored. After the worker has died, one document at a time."""
        left = list(indexed)
        crashes: Counter[int] = Counter()
        waits = iter(WAITS_S)
        while left:
            batch = left[:1] if crashes else left
            for document in batch:
                document.error = ""
            try:
                await self._store_once(batch, state)
            except WorkerUnavailable as error:
                await self._corpus.process.ready()
                crashes.update(id(document) for document in batch)
                if len(batch) > 1 or crashes[id(batch[0])] < MAX_CRASHES:
                    continue
                batch[0].error = f"the worker died {MAX_CRASHES} times of it: {error.message}"
            except (Overloaded, DatabaseUnavailable):
                if (wait_s := next(waits, None)) is None:
                    raise
                await asyncio.sleep(wait_s)
                continue
            all_failed = len(batch) > 1 and all(document.error for document in batch)
            if all_failed and (wait_s := next(waits, None)) is not None:
                # Not the documents are at fault but a tier, perhaps not for long.
                await asyncio.sleep(wait_s)
                continue
            for document in batch:
                if document.error:
                    state.counts.fail(document.doc_id, document.error)
                else:
                    state.counts.done += 1
            left = left[len(batch) :]

    async def _store_once(self, batch: Sequence[_Indexed], state: _RangeState) -> None:
        """Have each text stored once; the same one again is there already."""
        wanted: dict[Text, ChunkKV] = {}
        same: list[tuple[_Indexed, ChunkKV]] = []
        owners: dict[int, _Indexed] = {}
        for document in batch:
            for target in document.targets:
                text = (target.tenant, tuple(target.ids))
                if text in state.stored or text in wanted:
                    same.append((document, target))
                else:
                    wanted[text] = target
                    owners[target.chunk_id] = document
        targets = list(wanted.values())
        starts = range(0, len(targets), CHUNKS_PER_CALL)
        calls = [targets[start : start + CHUNKS_PER_CALL] for start in starts]
        async with self._corpus.purges.storing([*targets, *(target for _, target in same)]):
            await side_by_side(
                [
                    partial(self._call, lora, part, owners, state)
                    for lora in self._models
                    for part in calls
                ],
                CALLS_UNDER_WAY,
            )
        failed = {chunk_id for chunk_id, document in owners.items() if document.error}
        state.stored |= {text for text, t in wanted.items() if t.chunk_id not in failed}
        for document, target in same:
            if (target.tenant, tuple(target.ids)) in state.stored:
                state.count(target.chunk_id, "", "present", 0)
            else:
                document.error = document.error or "its KV was not stored, as that of the same text"

    async def _call(
        self,
        lora: str,
        part: Sequence[ChunkKV],
        owners: dict[int, _Indexed],
        state: _RangeState,
    ) -> None:
        """One call of the worker, which looks for each chunk before it computes it."""
        prompts = self._corpus.prompts
        chunks = [ChunkTokens(target.chunk_id, target.ids) for target in part]
        try:
            replies = self._corpus.worker.precompute(
                prompts.system, chunks, prompts.prefix_mode, part[0].tenant, lora
            )
            async with contextlib.aclosing(replies):
                async for reply in replies:
                    if reply.status == "failed":
                        owners[reply.chunk_id].error = f"its KV was not stored: {reply.message}"
                    else:
                        state.count(reply.chunk_id, lora, reply.status, reply.bytes)
        except (WorkerUnavailable, Overloaded, DatabaseUnavailable):
            raise
        except KvstitchError as error:
            for chunk in chunks:
                owners[chunk.chunk_id].error = error.message


async def _again(work: Callable[[], Awaitable[T]]) -> T:
    """`work`, tried again while the database is away."""
    for wait_s in WAITS_S:
        try:
            return await work()
        except DatabaseUnavailable as error:
            logger.warning("again in %.0f s: %s", wait_s, error.message)
            await asyncio.sleep(wait_s)
    return await work()


def _take(
    read: Iterator[SpooledDocument | tuple[str, str]],
) -> tuple[list[SpooledDocument], list[tuple[str, str]], bool]:
    """Some documents, what could not be read, and whether there may be more."""
    items: list[SpooledDocument] = []
    unread: list[tuple[str, str]] = []
    size = 0
    while len(items) < SLICE_DOCUMENTS and size < SLICE_BYTES:
        try:
            one = next(read, None)
        except KvstitchError:
            raise
        except Exception as error:
            raise InternalError(f"the input cannot be read: {error}") from error
        if one is None:
            return items, unread, False
        if isinstance(one, SpooledDocument):
            items.append(one)
            size += len(one.content or b"")
        else:
            unread.append(one)
    return items, unread, True
