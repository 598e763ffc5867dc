"""The first stage of ingestion: brings documents into the catalog and the index.

See document_queue.py. Documents that take long are worked on beside the others.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import Literal, TypeVar

from retriever import Document, EmbeddedDocument, IngestResult, Scope
from service.errors import KvstitchError
from service.gateway.documents.background_loop import side_by_side
from service.gateway.documents.deletion.purge_queue import PurgeQueue
from service.gateway.documents.document_queue import DocumentQueue
from service.gateway.documents.jobs.job_records import IndexedDocument, IngestDocument
from service.gateway.documents.long_documents import LongDocuments
from service.gateway.documents.parsing.parsed_file import ParseWarning
from service.gateway.documents.parsing.parser import DocumentParser, FileLimits
from service.gateway.search.async_retriever import AsyncRetriever

T = TypeVar("T")
Indexed = Literal["nothing", "some", "all"]

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
    """Indexes the documents of a queue, a batch at a time.

    Args:
        queue: Of documents.
        retriever: With catalog and index.
        purges: Of KV of revisions that are replaced.
        limits: Of files.
        on_warnings: Called with the warnings of every document that is indexed.
        aside: Whether documents that take long are worked on beside the others.

    Attributes:
        long: Documents that take long; None: they are as all others.
    """

    def __init__(
        self,
        queue: DocumentQueue,
        retriever: AsyncRetriever,
        purges: PurgeQueue,
        limits: FileLimits,
        *,
        on_warnings: Callable[[Sequence[ParseWarning]], None] = lambda warnings: None,
        aside: bool = False,
    ) -> None:
        self._queue = queue
        self._retriever = retriever
        self._purges = purges
        self._parser = DocumentParser(limits)
        self._on_warnings = on_warnings
        self.long: LongDocuments | None = None
        if aside:
            self.long = LongDocuments(
                self._parser, retriever,
                wanted=self._still_pending, store=self._store_long, fail=self._fail_long,
            )  # fmt: skip

    def cancel(self, job_id: str) -> None:
        """End what is being done for the long documents of a job, which are cancelled already.

        Of others a batch is indexed without those that were cancelled.
        """
        if self.long is not None:
            self.long.cancel(job_id)

    async def close(self) -> None:
        """End the work on documents that take long."""
        if self.long is not None:
            await self.long.close()

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


def until_repetition(items: Sequence[IngestDocument]) -> list[IngestDocument]:
    """Return the items before the first document that comes again."""
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
