"""The ingestor: brings documents into the catalog and the index, and has their KV stored.

    pending ── parse ── cut, embed ── catalog and index ── indexed ── KV stored ── done
                └── error: failed                              └── the worker died: dead

Documents come from a queue: that of the jobs on disk, or that of a range of a bulk run. The steps
are made by background tasks of the gateway, or by a Ray actor. Every step reads from the queue what
is to be done, and doing it again changes nothing where it was done already: a restart simply
continues.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import Literal, Protocol, TypeVar

from retriever import Document, EmbeddedDocument, IngestResult, Scope
from service.errors import KvstitchError, WorkerUnavailable
from service.gateway.documents.background_loop import side_by_side
from service.gateway.documents.chunk_kv import ChunkKV, ChunkKVs
from service.gateway.documents.jobs.job_records import IndexedDocument, IngestDocument
from service.gateway.documents.kv_storing import (
    BATCH_CHUNKS,
    BatchProgress,
    KvStoring,
    OnReply,
    slices,
)
from service.gateway.documents.parsing.parsed_file import ParseWarning
from service.gateway.documents.parsing.parser import DocumentParser, FileLimits
from service.gateway.documents.purge_queue import PurgeQueue
from service.gateway.worker_client.protocol import Worker
from service.settings import Settings

logger = logging.getLogger(__name__)
T = TypeVar("T")
Indexed = Literal["nothing", "some", "all"]

# Small enough for steady progress. Large enough that texts of similar length are embedded together:
# a quarter of it takes a sixth more processor time.
INDEXED_DOCUMENTS = 128
INDEXED_BYTES = 250_000
# Files that are parsed at a time, each by a process of its own, whose start takes longer than most
# files. They have low priority, and each may take its share of memory.
PARSERS = min(4, os.cpu_count() or 1)
# Many documents, so that enough chunks with the same prefix are computed together.
STORED_DOCUMENTS = 256
MAX_CRASHES = 3  # a document during which the worker died this often fails


class DocumentQueue(Protocol):
    """Documents on their way in, each with a number; every call may block."""

    def pending(self, limit: int, max_bytes: int) -> list[IngestDocument]:
        """Return the next documents to index, oldest first: at least one, if there is one, then up
        to `max_bytes`."""
        ...

    def indexed(self, limit: int) -> list[IngestDocument]:
        """Return the next documents whose KV is to be stored, oldest first."""
        ...

    def still_in(self, state: str, numbers: Sequence[int]) -> set[int]:
        """Return those of the documents that are in this state; others may have been cancelled."""
        ...

    def set_indexed(self, documents: Sequence[IndexedDocument]) -> None:
        """Note documents that are in the catalog and the index."""
        ...

    def set_done(self, numbers: Sequence[int]) -> None:
        """Note documents whose KV is stored."""
        ...

    def set_failed(self, documents: Sequence[tuple[int, str]], state: str = "failed") -> None:
        """Note (number, what is wrong); "dead": the worker died of the document."""
        ...


class Ingestor:
    """Works off a queue of documents, a batch at a time.

    The two steps may run side by side: one batch is indexed while the KV of another is stored.

    Args:
        queue: Of documents.
        chunks: Finds their chunks; with catalog and index.
        worker: Computes and stores KV.
        purges: Of KV of revisions that are replaced.
        settings: Limits of files, and LoRA adapters with which chunks are computed.
        on_reply: As of `KvStoring`.
        on_warnings: Called with the warnings of every document that is indexed.
        wait_again_s: Pauses after which a batch is tried again of which no document could be
            stored: perhaps a tier is away for a moment.
        complete: As of `KvStoring`.

    Attributes:
        kv: Has KV stored.
    """

    def __init__(
        self,
        queue: DocumentQueue,
        chunks: ChunkKVs,
        worker: Worker,
        purges: PurgeQueue,
        *,
        settings: Settings,
        on_reply: OnReply = lambda reply, lora, tokens: None,
        on_warnings: Callable[[Sequence[ParseWarning]], None] = lambda warnings: None,
        wait_again_s: Sequence[float] = (),
        complete: bool = False,
    ) -> None:
        self._queue = queue
        self._retriever = chunks.retriever
        self._purges = purges
        self._parser = DocumentParser(FileLimits.of(settings))
        self.kv = KvStoring(
            worker, chunks, purges,
            loras=settings.precomputed_loras, on_reply=on_reply, complete=complete,
        )  # fmt: skip
        self._on_warnings = on_warnings
        self._waits = iter(wait_again_s)
        self._crashes: Counter[int] = Counter()  # by number of the document

    # -- catalog and index -----------------------------------------------------------------------

    async def index_batch(self) -> Indexed:
        """Parse, embed and store some documents; returns which of those that are pending."""
        pending = await asyncio.to_thread(self._queue.pending, INDEXED_DOCUMENTS, INDEXED_BYTES)
        batch = until_repetition(pending)
        if not batch:
            return "nothing"
        parsed, warnings, failed = await self._parse(batch)
        embedded = await self._embed(parsed)
        async with self._purges.catalog_lock:
            # Others were cancelled while they were parsed and embedded.
            numbers = [item.number for item, _ in embedded]
            current = await asyncio.to_thread(self._queue.still_in, "pending", numbers)
            indexed = []
            for item, result in await self._store([e for e in embedded if e[0].number in current]):
                if result.error is None:
                    tokens = sum(chunk.tokens for chunk in result.chunks)
                    said = warnings[item.number]
                    encoded = json.dumps([asdict(warning) for warning in said], ensure_ascii=False)
                    indexed.append(IndexedDocument(
                        item.number, result.status, len(result.chunks), tokens, encoded
                    ))  # fmt: skip
                    self._on_warnings(said)
                else:
                    failed.append((item.number, str(result.error)))
            await asyncio.to_thread(self._queue.set_failed, failed)
            await asyncio.to_thread(self._queue.set_indexed, indexed)
        return "all" if len(batch) == len(pending) < INDEXED_DOCUMENTS else "some"

    async def _parse(
        self, batch: Sequence[IngestDocument]
    ) -> tuple[
        list[tuple[IngestDocument, Document]],
        dict[int, Sequence[ParseWarning]],
        list[tuple[int, str]],
    ]:
        """Return documents that could be parsed, their warnings by number, and (number, error) of
        the others."""
        parsed: dict[int, Document] = {}
        warnings: dict[int, Sequence[ParseWarning]] = {}
        failed: list[tuple[int, str]] = []

        async def parse(item: IngestDocument) -> None:
            try:
                parsed[item.number], warnings[item.number] = await self._parser.document(item)
            except KvstitchError as error:
                failed.append((item.number, error.message))

        await side_by_side([partial(parse, item) for item in batch], PARSERS)
        found = [(item, parsed[item.number]) for item in batch if item.number in parsed]
        return found, warnings, failed

    async def _embed(
        self, parsed: Sequence[tuple[IngestDocument, Document]]
    ) -> list[tuple[IngestDocument, EmbeddedDocument]]:
        """Cut and embed. It takes long, so no lock is held: deletions need not wait."""
        out: list[tuple[IngestDocument, EmbeddedDocument]] = []
        for scope, pairs in _by_scope(parsed):
            embedded = await self._retriever.embed([doc for _, doc in pairs], scope=scope)
            out += zip([item for item, _ in pairs], embedded, strict=True)
        return out

    async def _store(
        self, embedded: Sequence[tuple[IngestDocument, EmbeddedDocument]]
    ) -> list[tuple[IngestDocument, IngestResult]]:
        """Store documents in catalog and index, after purges for their previous revisions were
        added. The catalog lock must be held. No document may come twice."""
        out: list[tuple[IngestDocument, IngestResult]] = []
        for scope, pairs in _by_scope(embedded):
            await self._purges.add(scope, [item.doc_id for item, _ in pairs])
            results = await self._retriever.store([doc for _, doc in pairs], scope=scope)
            out += zip([item for item, _ in pairs], results, strict=True)
        return out

    # -- KV --------------------------------------------------------------------------------------

    async def store_batch(self) -> bool:
        """Have the KV of some indexed documents stored; False if there were none.

        Raises:
            WorkerUnavailable: The worker is away, or died of these documents, which is counted.
        """
        # One by one after a crash, so that a document that kills the worker does not block others.
        limit = 1 if self._crashes else STORED_DOCUMENTS
        batch = await asyncio.to_thread(self._queue.indexed, limit)
        if not batch:
            self._crashes.clear()  # of documents that were cancelled
            return False
        try:
            await self._store_kv(batch)
        except WorkerUnavailable:
            await self._count_crash(batch)
            raise
        return True

    async def _store_kv(self, batch: Sequence[IngestDocument]) -> None:
        work: list[tuple[int, ChunkKV]] = []

        async def finish(numbers: Sequence[int]) -> None:
            done = set(numbers)
            await self.kv.note_stored([c.chunk_id for number, c in work if number in done])
            await self._finish(numbers)

        progress = BatchProgress(finish)
        for scope, items in slices(batch):
            if len(work) >= BATCH_CHUNKS:
                break  # the others are in the next batch
            doc_ids = list(dict.fromkeys(item.doc_id for item in items))
            to_store = await self.kv.to_store(scope, doc_ids)
            for item in items:
                own = [chunk for chunk in to_store if chunk.doc_id == item.doc_id]
                work += [(item.number, chunk) for chunk in own]
                progress.expect(item.number, sum(map(self.kv.count, own)))
        async with progress:
            await self.kv.store(work, progress)
        failed = sorted(progress.errors.items())
        wait_s = next(self._waits, None) if len(failed) == len(progress.numbers) > 1 else None
        if wait_s is not None:
            await asyncio.sleep(wait_s)
            return
        for number, _ in failed:
            self._crashes.pop(number, None)
        await asyncio.to_thread(self._queue.set_failed, failed)

    async def _finish(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._crashes.pop(number, None)
        await asyncio.to_thread(self._queue.set_done, numbers)

    async def _count_crash(self, batch: Sequence[IngestDocument]) -> None:
        numbers = [item.number for item in batch]
        for number in await asyncio.to_thread(self._queue.still_in, "indexed", numbers):
            self._crashes[number] += 1
        given_up = [n for n in numbers if self._crashes[n] >= MAX_CRASHES]
        reason = f"the worker died {MAX_CRASHES} times while computing its KV"
        for number in given_up:
            self._crashes.pop(number)
        await asyncio.to_thread(self._queue.set_failed, [(n, reason) for n in given_up], "dead")


def until_repetition(items: Sequence[IngestDocument]) -> list[IngestDocument]:
    """Return the items before the first document that comes again.

    Between its two revisions purges must be added for the chunks of the first.
    """
    out: list[IngestDocument] = []
    seen: set[tuple[str, str, str]] = set()
    for item in items:
        if item.key in seen:
            break
        seen.add(item.key)
        out.append(item)
    return out


def _by_scope(
    pairs: Sequence[tuple[IngestDocument, T]],
) -> Iterator[tuple[Scope, list[tuple[IngestDocument, T]]]]:
    ordered = sorted(pairs, key=lambda pair: pair[0].key[:2])
    for (tenant, collection), group in groupby(ordered, lambda pair: pair[0].key[:2]):
        yield Scope(tenant, collection), list(group)
