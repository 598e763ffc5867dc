"""The ingestor: brings documents into the catalog and the index, and has their KV stored.

    pending ── parse ── cut, embed ── catalog and index ── indexed ── KV stored ── done
                ├── error: failed                              └── the worker died: dead
                └── takes long: beside all others (long_documents.py)

Documents come from a queue: that of the jobs on disk, or that of a range of a bulk run. The steps
are made by background tasks of the gateway, or by a Ray actor. Every step reads from the queue what
is to be done, and doing it again changes nothing where it was done already: a restart simply
continues.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from service.gateway.documents.long_documents import LongDocuments
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
# A document with more bytes, or more text, is worked on beside all others; so is one that takes
# longer to read, and what is left of a batch whose reading takes longer.
LONG_BYTES = LONG_CHARS = INDEXED_BYTES
LONG_READING_S = 5.0
BATCH_READING_S = 10.0
BATCH_CHARS = 4 * INDEXED_BYTES
PASS_CHUNKS = 256  # of one document whose KV is stored before others have their turn
MAX_CRASHES = 3  # a document during which the worker died this often fails


TITLE_CUT = ParseWarning(
    "title_cut",
    "its title takes more than a fourth of a chunk, stands in each of them, and was cut: give a "
    "shorter one if words of it are missed",
)


class DocumentQueue(Protocol):
    """Documents on their way in, each with a number; every call may block."""

    def pending(
        self,
        limit: int,
        max_bytes: int,
        *,
        without: Collection[int] = (),
        largest: int | None = None,
    ) -> list[IngestDocument]:
        """Return the next documents to index, oldest first: at least one, if there is one, then up
        to `max_bytes`.

        Args:
            without: Numbers of documents that are left out.
            largest: Bytes of the largest that is wanted; None: any.
        """
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
        aside: Whether documents that take long are worked on beside the others.

    Attributes:
        kv: Has KV stored.
        long: Documents that take long; None: they are as all others.
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
        aside: bool = False,
    ) -> None:
        self._queue = queue
        self._chunks = chunks
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
        self._storing: asyncio.Task[None] | None = None
        self._storing_jobs: set[str] = set()
        # Chunks of long documents whose KV is stored in the next passes, by number.
        self._rest: dict[int, list[ChunkKV]] = {}
        self.long: LongDocuments | None = None
        if aside:
            self.long = LongDocuments(
                self._parser, chunks.retriever,
                wanted=self._still_pending, store=self._store_long, fail=self._fail_long,
            )  # fmt: skip

    async def cancel(self, job_id: str, indexed: Sequence[tuple[Scope, str]]) -> None:
        """End what is being done for the documents of a job, which are cancelled already.

        Args:
            job_id: Of the job.
            indexed: Its documents that were indexed, but not done.
        """
        if self.long is not None:
            self.long.cancel(job_id)
        if self._storing is not None and job_id in self._storing_jobs:
            self._storing.cancel()  # what is left of the batch for other jobs is begun again
        await self._chunks.leave(indexed)

    async def close(self) -> None:
        """End the work on documents that take long."""
        if self.long is not None:
            await self.long.close()

    # -- catalog and index -----------------------------------------------------------------------

    async def index_batch(self) -> Indexed:
        """Parse, embed and store some documents; returns which of those that are pending."""
        long = self.long
        find = partial(
            self._queue.pending,
            INDEXED_DOCUMENTS,
            INDEXED_BYTES,
            without=() if long is None else long.numbers,
            largest=LONG_BYTES if long is not None and long.full else None,
        )
        pending = await asyncio.to_thread(find)
        batch = [item for item in until_repetition(pending) if not self._aside(item)]
        if not batch:
            return "some" if pending else "nothing"
        parsed, warnings, failed = await self._parse(batch)
        embedded = await self._embed(parsed)
        await self._store_current(embedded, warnings, failed)
        whole = len(parsed) + len(failed) >= len(batch) == len(pending) < INDEXED_DOCUMENTS
        return "all" if whole else "some"

    def _aside(self, item: IngestDocument) -> bool:
        """Return whether a document is none of a batch's: it is long, or an earlier revision is."""
        if self.long is None:
            return False
        if self.long.holds_back(item):
            return True
        if item.size > LONG_BYTES:
            self.long.add(item)
        return item.size > LONG_BYTES

    async def _store_current(
        self,
        embedded: Sequence[tuple[IngestDocument, EmbeddedDocument]],
        warnings: Mapping[int, Sequence[ParseWarning]],
        failed: list[tuple[int, str]],
    ) -> None:
        """Store those that were not cancelled meanwhile, and note what became of all."""
        async with self._purges.catalog_lock:
            numbers = [item.number for item, _ in embedded]
            title_cut = {item.number for item, document in embedded if document.title_cut}
            current = await asyncio.to_thread(self._queue.still_in, "pending", numbers)
            indexed = []
            for item, result in await self._store([e for e in embedded if e[0].number in current]):
                if result.error is None:
                    tokens = sum(chunk.tokens for chunk in result.chunks)
                    said = [*warnings[item.number]]
                    if item.number in title_cut:
                        said.append(TITLE_CUT)
                    encoded = json.dumps([asdict(warning) for warning in said], ensure_ascii=False)
                    indexed.append(IndexedDocument(
                        item.number, result.status, len(result.chunks), tokens, encoded
                    ))  # fmt: skip
                    self._on_warnings(said)
                else:
                    failed.append((item.number, str(result.error)))
            await asyncio.to_thread(self._queue.set_failed, failed)
            await asyncio.to_thread(self._queue.set_indexed, indexed)

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
        long, chars = self.long, 0
        # With so many of them that take long there is nothing to be gained by putting off more.
        patient = long is None or long.full
        give_up_at = math.inf if patient else time.monotonic() + BATCH_READING_S

        async def parse(item: IngestDocument) -> None:
            nonlocal chars
            if time.monotonic() > give_up_at:
                return  # it stays pending
            try:
                async with asyncio.timeout(None if patient else LONG_READING_S):
                    document, said = await self._parser.document(item)
            except TimeoutError:
                assert long is not None
                long.add(item)
            except KvstitchError as error:
                failed.append((item.number, error.message))
            else:
                chars += len(document.text)
                if long is not None and (len(document.text) > LONG_CHARS or chars > BATCH_CHARS):
                    long.add(item, (document, said))
                else:
                    parsed[item.number], warnings[item.number] = document, said

        await side_by_side([partial(parse, item) for item in batch], PARSERS)
        found = [(item, parsed[item.number]) for item in batch if item.number in parsed]
        return found, warnings, failed

    async def _still_pending(self, number: int) -> bool:
        return bool(await asyncio.to_thread(self._queue.still_in, "pending", [number]))

    async def _store_long(
        self, item: IngestDocument, embedded: EmbeddedDocument, said: Sequence[ParseWarning]
    ) -> None:
        await self._store_current([(item, embedded)], {item.number: said}, [])

    async def _fail_long(self, number: int, message: str) -> None:
        await asyncio.to_thread(self._queue.set_failed, [(number, message)])

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
            await self._purges.add(scope, {item.doc_id: item.readers for item, _ in pairs})
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
            await self.kv.note_stored([c.chunk_id for number, c in work if number in done])
            await self._finish([number for number in numbers if number not in self._rest])

        progress = BatchProgress(finish)
        for scope, items in slices(sorted(batch, key=lambda item: item.number in self._rest)):
            if len(work) >= BATCH_CHUNKS:
                break  # the others are in the next batch
            fresh = dict.fromkeys(item.doc_id for item in items if item.number not in self._rest)
            to_store = await self.kv.to_store(scope, list(fresh)) if fresh else []
            for item in items:
                own = self._rest.pop(item.number, None) or [
                    chunk for chunk in to_store if chunk.doc_id == item.doc_id
                ]
                if own[PASS_CHUNKS:]:
                    self._rest[item.number], own = own[PASS_CHUNKS:], own[:PASS_CHUNKS]
                work += [(item.number, chunk) for chunk in own]
                progress.expect(item.number, sum(map(self.kv.count, own)))
        async with progress:
            await self.kv.store(work, progress)
        failed = sorted(progress.errors.items())
        wait_s = next(self._waits, None) if len(failed) == len(progress.numbers) > 1 else None
        if wait_s is not None:
            self._rest.clear()
            await asyncio.sleep(wait_s)
            return
        for number, _ in failed:
            self._rest.pop(number, None)
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
        await self._chunks.leave((i.scope, i.doc_id) for i in batch if i.number in given_up)
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
    def sent_to(pair: tuple[IngestDocument, T]) -> tuple[str, str, str]:
        return pair[0].tenant, pair[0].collection, pair[0].view.name

    for _, group in groupby(sorted(pairs, key=sent_to), sent_to):
        found = list(group)
        yield found[0][0].scope, found
