"""Brings accepted documents into the catalog and the index.

    pending ── parse ── embed ── add purges for the old revision ── store ── indexed, or failed

What is to be done is read from the job store, so a restart simply continues. A batch that was cut
off is done again, which changes nothing where it was done already.
"""

from __future__ import annotations

import asyncio

from service.gateway.documents.background_loop import BackgroundLoop
from service.gateway.documents.corpus_gauges import CorpusGauges
from service.gateway.documents.document_indexer import DocumentIndexer, until_repetition
from service.gateway.documents.jobs.job_store import JobStore
from service.gateway.documents.parsing.parser import DocumentParser
from service.gateway.documents.precompute_loop import PrecomputeLoop
from service.gateway.documents.purge_queue import PurgeQueue
from service.gateway.search.async_retriever import AsyncRetriever

# Small enough for steady progress. Large enough that texts of similar length are embedded together:
# a quarter of it takes a sixth more processor time.
BATCH_DOCUMENTS = 128
BATCH_BYTES = 250_000


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
        self._indexer = DocumentIndexer(retriever, purges, parser)
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
        batch = until_repetition(spooled)
        if not batch:
            if self._needs_scrub:
                self._needs_scrub = False
                await asyncio.to_thread(self._jobs.scrub)
            return False
        parsed, failed = await self._indexer.parse(batch)
        embedded = await self._indexer.embed(parsed)
        async with self._purges.catalog_lock:
            # Others were cancelled while they were parsed and embedded.
            numbers = [item.number for item, _ in embedded]
            pending = await asyncio.to_thread(self._jobs.still_in, "pending", numbers)
            current = [e for e in embedded if e[0].number in pending]
            indexed = []
            for item, result in await self._indexer.store(current):
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
