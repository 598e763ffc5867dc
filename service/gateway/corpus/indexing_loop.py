"""From accepted documents to the catalog and the index. Knows no HTTP and no KV.

    pending ── parse ── note what may have to go ── retriever ── indexed, or failed

What to do is read from the job store, so that a restart simply goes on; a batch that was cut off is
done again, which changes nothing where it was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

from retriever import Document, IngestResult, Scope
from service.errors import KvstitchError
from service.gateway.corpus.background_loop import BackgroundLoop
from service.gateway.corpus.job_records import SpooledDocument
from service.gateway.corpus.job_store import JobStore
from service.gateway.corpus.parsing.parser import DocumentParser
from service.gateway.corpus.purge_queue import PurgeQueue
from service.gateway.prometheus import GatewayMetrics
from service.gateway.retrieval.async_retriever import AsyncRetriever
from service.metrics import JOB_STATES

T = TypeVar("T")

BATCH_DOCUMENTS = 32
BATCH_BYTES = 100_000  # small enough for steady progress, large enough to embed in batches


class IndexingLoop:
    """One loop; `on_indexed` is called when documents are ready to be computed."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        retriever: AsyncRetriever,
        purges: PurgeQueue,
        parser: DocumentParser,
        metrics: GatewayMetrics,
        scrub: Callable[[], None],
    ) -> None:
        self._jobs = jobs
        self._retriever = retriever
        self._purges = purges
        self._parser = parser
        self._metrics = metrics
        self.on_indexed: Callable[[], None] = lambda: None
        self._scrub = scrub
        self._dirty = True  # the log of the database may hold text that is done with
        self._loop = BackgroundLoop("indexing", self._step)
        self.wake = self._loop.wake

    async def start(self) -> None:
        await self.count()
        self._loop.start()

    async def close(self) -> None:
        await self._loop.close()

    async def count(self) -> None:
        """Set the gauges of documents, chunks and jobs."""
        counts = await self._retriever.counts()
        self._metrics.documents.set(counts.documents)
        self._metrics.chunks.set(counts.chunks)
        states = await asyncio.to_thread(self._jobs.states)
        for state in JOB_STATES:
            self._metrics.jobs.labels(state).set(states.get(state, 0))

    async def _step(self) -> bool:
        """Index one batch; False if there was none."""
        spooled = await asyncio.to_thread(self._jobs.pending, BATCH_DOCUMENTS, BATCH_BYTES)
        batch = _distinct(spooled)
        if not batch:
            if self._dirty:
                self._dirty = False
                await asyncio.to_thread(self._scrub)
            return False
        parsed, failed = await self._parse(batch)
        async with self._purges.changing:
            numbers = [item.number for item, _ in parsed]
            still = await asyncio.to_thread(self._jobs.still, "pending", numbers)
            # Groups of one scope: a batch is in the order of numbers, not of scopes.
            wanted = sorted(
                (pair for pair in parsed if pair[0].number in still), key=lambda p: p[0].name[:2]
            )
            indexed = []
            for (tenant, collection), group in groupby(wanted, lambda pair: pair[0].name[:2]):
                for item, result in await self._ingest(Scope(tenant, collection), list(group)):
                    if result.error is None:
                        indexed.append((item.number, result.status, len(result.chunks)))
                    else:
                        failed.append((item.number, str(result.error)))
            await asyncio.to_thread(self._jobs.set_failed, failed)
            await asyncio.to_thread(self._jobs.set_indexed, indexed)
        self._dirty = True
        self.on_indexed()
        if len(batch) == len(spooled) < BATCH_DOCUMENTS:
            await self._retriever.save()
        await self.count()
        return True

    async def _parse(
        self, batch: Sequence[SpooledDocument]
    ) -> tuple[list[tuple[SpooledDocument, Document]], list[tuple[int, str]]]:
        parsed: list[tuple[SpooledDocument, Document]] = []
        failed: list[tuple[int, str]] = []
        for item in batch:
            try:
                parsed.append((item, await self._parser.document(item)))
            except KvstitchError as error:
                failed.append((item.number, error.message))
        return parsed, failed

    async def _ingest(
        self, scope: Scope, group: Sequence[tuple[SpooledDocument, Document]]
    ) -> list[tuple[SpooledDocument, IngestResult]]:
        await self._purges.note(scope, [item.doc_id for item, _ in group])
        results = await self._retriever.ingest([document for _, document in group], scope=scope)
        return [(item, result) for (item, _), result in zip(group, results, strict=True)]


def _distinct(items: Sequence[SpooledDocument]) -> list[SpooledDocument]:
    """Up to the first document that comes again: its chunks must be noted in between."""
    out: list[SpooledDocument] = []
    seen: set[tuple[str, str, str]] = set()
    for item in items:
        if item.name in seen:
            break
        seen.add(item.name)
        out.append(item)
    return out
