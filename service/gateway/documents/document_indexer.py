"""The steps that bring documents into the catalog and the index.

    parse ── embed ── add purges for the old revision ── store

Doing a step again changes nothing where it was done already.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TypeVar

from retriever import Document, EmbeddedDocument, IngestResult, Scope
from service.errors import KvstitchError
from service.gateway.documents.jobs.job_records import SpooledDocument
from service.gateway.documents.parsing.parser import DocumentParser
from service.gateway.documents.purge_queue import PurgeQueue
from service.gateway.documents.side_by_side import side_by_side
from service.gateway.search.async_retriever import AsyncRetriever

T = TypeVar("T")

# Files that are parsed at a time, each by a process of its own, whose start takes longer than most
# files. They have low priority, and each may take its share of memory.
PARSERS = min(4, os.cpu_count() or 1)


class DocumentIndexer:
    """Parses, embeds and stores documents of any scopes."""

    def __init__(
        self, retriever: AsyncRetriever, purges: PurgeQueue, parser: DocumentParser
    ) -> None:
        self._retriever = retriever
        self._purges = purges
        self._parser = parser

    async def parse(
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

    async def embed(
        self, parsed: Sequence[tuple[SpooledDocument, Document]]
    ) -> list[tuple[SpooledDocument, EmbeddedDocument]]:
        """What is to be stored. Takes long, so no lock is held: deletions need not wait."""
        out: list[tuple[SpooledDocument, EmbeddedDocument]] = []
        for scope, pairs in _by_scope(parsed):
            embedded = await self._retriever.embed([doc for _, doc in pairs], scope=scope)
            out += zip([item for item, _ in pairs], embedded, strict=True)
        return out

    async def store(
        self, embedded: Sequence[tuple[SpooledDocument, EmbeddedDocument]]
    ) -> list[tuple[SpooledDocument, IngestResult]]:
        """Store documents, after purges for their previous revisions were added.

        The catalog lock must be held. No document may come twice.
        """
        out: list[tuple[SpooledDocument, IngestResult]] = []
        for scope, pairs in _by_scope(embedded):
            await self._purges.add(scope, [item.doc_id for item, _ in pairs])
            results = await self._retriever.store([doc for _, doc in pairs], scope=scope)
            out += zip([item for item, _ in pairs], results, strict=True)
        return out


def until_repetition(items: Sequence[SpooledDocument]) -> list[SpooledDocument]:
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


def _by_scope(
    pairs: Sequence[tuple[SpooledDocument, T]],
) -> Iterator[tuple[Scope, list[tuple[SpooledDocument, T]]]]:
    ordered = sorted(pairs, key=lambda pair: pair[0].key[:2])
    for (tenant, collection), group in groupby(ordered, lambda pair: pair[0].key[:2]):
        yield Scope(tenant, collection), list(group)
