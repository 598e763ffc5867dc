"""Brings accepted documents into the catalog and the index.

    pending ── parse ── embed ── add purges for the old revision ── store ── indexed, or failed

What is to be done is read from the job store, so a restart simply continues. A batch that was cut
off is done again, which changes nothing where it was done already.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TypeVar

from retriever import Document, EmbeddedDocument, IngestResult, Scope
from service.errors import KvstitchError
from service.gateway.corpus.background_loop import BackgroundLoop
from service.gateway.corpus.corpus_gauges import CorpusGauges
from service.gateway.corpus.jobs.job_records import SpooledDocument
from service.gateway.corpus.jobs.job_store import JobStore
from service.gateway.corpus.parsing.parser import DocumentParser
from service.gateway.corpus.precompute_loop import PrecomputeLoop
from service.gateway.corpus.purge_queue import PurgeQueue
from service.gateway.corpus.side_by_side import side_by_side
from service.gateway.retrieval.async_retriever import AsyncRetriever

T = TypeVar("T")

# Small enough for steady progress. Large enough that texts of similar length are embedded together:
# a quarter of it takes a sixth more processor time.
BATCH_DOCUMENTS = 128
BATCH_BYTES = 250_000
# Files that are parsed at a time, each by a process of its own, whose start takes longer than most
# files. They have low priority, and each may take its share of memory.
PARSERS = min(4, os.cpu_count() or 1)


class IndexingLoop:
    """Indexes documents and wakes the precompute loop, which stores their KV."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        retriever: AsyncRetriever,
        purges: PurgeQueue,
        parser: DocumentParser,
        precompute: PrecomputeLoop,
        gauges: CorpusGauges,
    ) -> None:
        self._jobs = jobs
        self._retriever = retriever
        self._purges = purges
        self._parser = parser
        self._precompute = precompute
        self._gauges = gauges
        # The database's log may hold text of documents that are done.
        self._needs_scrub = True
        self._loop = BackgroundLoop("indexing", self._step)

    def start(self) -> None:
        self._loop.start()

    def wake(self) -> None:
        """Documents were accepted."""
        self._loop.wake()

    async def close(self) -> None:
        await self._loop.close()

    async def _step(self) -> bool:
        """Index one batch; False if there was none."""
        spooled = await asyncio.to_thread(self._jobs.pending, BATCH_DOCUMENTS, BATCH_BYTES)
        batch = _until_repetition(spooled)
        if not batch:
            if self._needs_scrub:
                self._needs_scrub = False
                await asyncio.to_thread(self._jobs.scrub)
            return False
        parsed, failed = await self._parse(batch)
        embedded = await self._embed(parsed)
        async with self._purges.catalog_lock:
            # Others were cancelled while they were parsed and embedded.
            numbers = [item.number for item, _ in embedded]
            pending = await asyncio.to_thread(self._jobs.still_in, "pending", numbers)
            indexed = []
            for item, result in await self._store([e for e in embedded if e[0].number in pending]):
                if result.error is None:
                    tokens = sum(chunk.tokens for chunk in result.chunks)
                    indexed.append((item.number, result.status, len(result.chunks), tokens))
                else:
                    failed.append((item.number, str(result.error)))
            await asyncio.to_thread(self._jobs.set_failed, failed)
            await asyncio.to_thread(self._jobs.set_indexed, indexed)
        self._needs_scrub = True
        self._precompute.wake()
        if len(batch) == len(spooled) < BATCH_DOCUMENTS:
            await self._retriever.save()
        await self._gauges.refresh()
        return True

    async def _parse(
        self, batch: Sequence[SpooledDocument]
    ) -> tuple[list[tuple[SpooledDocument, Document]], list[tuple[int, str]]]:
        """Documents that could be parsed, and (number, error) of those that could not."""
        parsed: dict[int, Document] = {}
        failed: list[tuple[int, str]] = []

        async def parse(item: SpooledDocument) -> None:
            try:
                parsed[item.number] = await self._parser.document(item)
            except KvstitchError as error:
                failed.append((item.number, error.message))

        await side_by_side([partial(parse, item) for item in batch], PARSERS)
        return [(item, parsed[item.number]) for item in batch if item.number in parsed], failed

    async def _embed(
        self, parsed: Sequence[tuple[SpooledDocument, Document]]
    ) -> list[tuple[SpooledDocument, EmbeddedDocument]]:
        """What is to be stored. Takes long, so no lock is held: deletions need not wait."""
        out: list[tuple[SpooledDocument, EmbeddedDocument]] = []
        for scope, pairs in _by_scope(parsed):
            embedded = await self._retriever.embed([doc for _, doc in pairs], scope=scope)
            out += zip([item for item, _ in pairs], embedded, strict=True)
        return out

    async def _store(
        self, embedded: Sequence[tuple[SpooledDocument, EmbeddedDocument]]
    ) -> list[tuple[SpooledDocument, IngestResult]]:
        """Store documents, after purges for their previous revisions were added."""
        out: list[tuple[SpooledDocument, IngestResult]] = []
        for scope, pairs in _by_scope(embedded):
            await self._purges.add(scope, [item.doc_id for item, _ in pairs])
            results = await self._retriever.store([doc for _, doc in pairs], scope=scope)
            out += zip([item for item, _ in pairs], results, strict=True)
        return out


def _by_scope(
    pairs: Sequence[tuple[SpooledDocument, T]],
) -> Iterator[tuple[Scope, list[tuple[SpooledDocument, T]]]]:
    ordered = sorted(pairs, key=lambda pair: pair[0].key[:2])
    for (tenant, collection), group in groupby(ordered, lambda pair: pair[0].key[:2]):
        yield Scope(tenant, collection), list(group)


def _until_repetition(items: Sequence[SpooledDocument]) -> list[SpooledDocument]:
    """The items before the first document that comes again.

    Between its two revisions purges must be added for the chunks of the first.
    """
    out: list[SpooledDocument] = []
    seen: set[tuple[str, str, str]] = set()
    for item in items:
        if item.key in seen:
            break
        seen.add(item.key)
        out.append(item)
    return out
