"""The first stage of ingestion: parses documents, and brings them into the catalog and the index.

See jobs/document_queue.py. Documents that take long are worked on beside the others.
"""

import asyncio
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Literal

from kvstitch.retriever import Scope
from kvstitch.retriever.scope import View
from kvstitch.service.errors import KvstitchError
from kvstitch.service.gateway.documents.background_loop import side_by_side
from kvstitch.service.gateway.documents.deletion.purge_queue import PurgeQueue
from kvstitch.service.gateway.documents.jobs.document_queue import DocumentQueue
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.gateway.documents.long_documents import LongDocuments
from kvstitch.service.gateway.documents.parsing.parsed_file import ParseWarning
from kvstitch.service.gateway.documents.parsing.parser import (
    DocumentParser,
    FileLimits,
    ParsedDocument,
)
from kvstitch.service.gateway.search.async_retriever import AsyncRetriever

Indexed = Literal["nothing", "some", "all"]
Failed = list[tuple[IngestDocument, str]]

# Small enough for steady progress. Large enough that texts of similar length are embedded together:
# a quarter of it takes a sixth more processor time.
INDEXED_DOCUMENTS = 128
INDEXED_BYTES = 250_000
# Files that are parsed at a time, each by a process of its own, whose start takes longer than most
# files. They have low priority, and each may take its share of memory.
PARSERS = min(4, os.cpu_count() or 1)
# A document with more bytes, or more text, is worked on beside all others; so is one that takes
# longer to read, and what is left of a batch whose reading takes longer.
LONG_BYTES = LONG_CHARS = INDEXED_BYTES
LONG_READING_S = 5.0
BATCH_READING_S = 10.0
BATCH_CHARS = 4 * INDEXED_BYTES

TITLE_CUT = ParseWarning(
    "title_cut",
    "its title takes more than a fourth of a chunk, stands in each of them, and was cut: give a "
    "shorter one if words of it are missed",
)


class IndexingStage:
    """Indexes the documents of a queue, a batch at a time; those that take long (`long`) beside the
    others, if they go `aside`."""

    def __init__(
        self,
        queue: DocumentQueue,
        retriever: AsyncRetriever,
        purges: PurgeQueue,
        limits: FileLimits,
        *,
        on_indexed: Callable[
            [Sequence[IngestDocument], Sequence[ParseWarning]], None
        ] = lambda indexed, warnings: None,
        aside: bool = False,
    ) -> None:
        self._queue = queue
        self._retriever = retriever
        self._purges = purges
        self._parser = DocumentParser(limits)
        self._on_indexed = on_indexed
        self.step: Literal["reading", "embedding"] = "reading"
        self._aside = aside
        self.long = LongDocuments(self._parser, retriever, queue, self._store)

    async def index_batch(self) -> Indexed:
        """Parse, embed and store some documents; returns which of those that are pending."""
        pending = await asyncio.to_thread(
            self._queue.pending,
            INDEXED_DOCUMENTS,
            INDEXED_BYTES,
            without=self.long.numbers,
            largest=LONG_BYTES if self.long.full else None,
        )
        batch = self._batch(pending)
        if not batch:
            return "some" if pending else "nothing"
        self.step = "reading"
        parsed, failed = await self._parse(batch)
        self.step = "embedding"
        handled = len(parsed) + len(failed)
        await self._retriever.embed(parsed)  # takes long, so no lock: deletions need not wait
        await self._store(parsed, failed)
        return "all" if handled >= len(batch) == len(pending) < INDEXED_DOCUMENTS else "some"

    def _batch(self, pending: Sequence[IngestDocument]) -> list[IngestDocument]:
        """Return the documents before the first that comes again, but for those that are left to
        `long`: they are large, or must wait for an earlier revision that is there."""
        out: list[IngestDocument] = []
        seen: set[tuple[str, str, str]] = set()
        for item in pending:
            if item.key in seen:
                break
            seen.add(item.key)
            if self.long.holds_back(item):
                continue
            if self._aside and item.size > LONG_BYTES:
                self.long.add(item)
            else:
                out.append(item)
        return out

    async def _parse(self, batch: Sequence[IngestDocument]) -> tuple[list[ParsedDocument], Failed]:
        """Return the documents that could be parsed, in their order, and what failed."""
        parsed: dict[int, ParsedDocument] = {}
        failed: Failed = []
        chars = 0
        # With so many of them that take long there is nothing to be gained by putting off more.
        patient = not self._aside or self.long.full
        give_up_at = math.inf if patient else time.monotonic() + BATCH_READING_S

        async def parse(item: IngestDocument) -> None:
            nonlocal chars
            if time.monotonic() > give_up_at:
                return  # it stays pending
            try:
                async with asyncio.timeout(None if patient else LONG_READING_S):
                    found = await self._parser.document(item)
            except TimeoutError:
                self.long.add(item)
            except KvstitchError as error:
                failed.append((item, error.message))
            else:
                size = len(found.text)
                chars += size
                if self._aside and (size > LONG_CHARS or chars > BATCH_CHARS):
                    self.long.add(item, found)
                else:
                    parsed[item.number] = found

        await side_by_side([partial(parse, item) for item in batch], PARSERS)
        return [parsed[item.number] for item in batch if item.number in parsed], failed

    async def _store(
        self, embedded: Sequence[ParsedDocument], failed: Sequence[tuple[IngestDocument, str]] = ()
    ) -> None:
        """Store those that were not cancelled meanwhile, after purges for their previous revisions
        were added, and note what became of all. No document may come twice."""
        failures = list(failed)
        indexed: list[IngestDocument] = []
        warned: list[ParseWarning] = []
        async with self._purges.catalog_lock:
            numbers = [each.item.number for each in embedded]
            current = await asyncio.to_thread(self._queue.still_in, "pending", numbers)
            # Scopes that differ in nothing but their views are equal.
            groups: dict[tuple[Scope, View], list[ParsedDocument]] = {}
            for each in embedded:
                if each.item.number in current:
                    groups.setdefault((each.scope, each.item.view), []).append(each)
            for (scope, _), group in groups.items():
                await self._purges.add(scope, {each.doc_id: each.readers for each in group})
                results = await self._retriever.store(group)
                texts = [each.text for each in group]
                said = await self._retriever.run(self._retriever.advice.warnings, texts)
                for each, result, language in zip(group, results, said, strict=True):
                    if result.error is not None:
                        failures.append((each.item, str(result.error)))
                        continue
                    warnings = [*each.warnings, *([TITLE_CUT] if each.title_cut else [])]
                    if language:
                        warnings.append(ParseWarning("other_language", language))
                    warned += warnings
                    indexed.append(replace(
                        each.item, change=result.status, chunks=len(result.chunks),
                        tokens=sum(chunk.tokens for chunk in result.chunks),
                        warnings=json.dumps(list(map(asdict, warnings)), ensure_ascii=False),
                    ))  # fmt: skip
            await asyncio.to_thread(self._queue.set_failed, failures)
            await asyncio.to_thread(self._queue.set_indexed, indexed)
            self._on_indexed(indexed, warned)
