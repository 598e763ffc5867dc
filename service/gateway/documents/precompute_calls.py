"""The worker's calls that store the KV of chunks, and what is noted down while they run.

The worker has the next call's chunks before it has stored those of the one before: it never waits
for the gateway, and fills its batches across calls.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import TracebackType
from typing import Self, TypeVar

from retriever import Scope
from service.gateway.documents.deletion_records import ChunkKV
from service.gateway.documents.jobs.job_records import SpooledDocument
from service.gateway.documents.purge_queue import CHUNKS_PER_CALL

T = TypeVar("T")

CALLS_UNDER_WAY = 2
BATCH_CHUNKS = 1024  # of which the batch's last document has the last; bounds memory
# Whose companions are chosen at a time, because deletions wait for that.
CHOOSING_DOCUMENTS = 32


@dataclass
class BatchProgress:
    """Of a batch.

    Attributes:
        chunks_left: by number of the document, those that are not stored yet.
        errors: by number, why a document fails.
    """

    chunks_left: Counter[int] = field(default_factory=Counter)
    errors: dict[int, str] = field(default_factory=dict)


def slices(
    batch: Sequence[SpooledDocument],
) -> Iterator[tuple[Scope, list[SpooledDocument]]]:
    """Neighbouring documents of a scope, few at a time, with few chunks unless one has many."""
    part: list[SpooledDocument] = []
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


def calls(items: Sequence[T], target_of: Callable[[T], ChunkKV]) -> Iterator[tuple[str, list[T]]]:
    """The worker's calls for these chunks, each with its tenant.

    Chunks behind the same companions come one after the other, because they are computed together.
    """

    def order(item: T) -> tuple[str, list[list[int]]]:
        target = target_of(item)
        return target.tenant, [ids for copy in target.copies for ids in copy.behind]

    ordered = sorted(items, key=order)
    for tenant, group in groupby(ordered, lambda item: target_of(item).tenant):
        of_tenant = list(group)
        for start in range(0, len(of_tenant), CHUNKS_PER_CALL):
            yield tenant, of_tenant[start : start + CHUNKS_PER_CALL]


class FinishedDocuments:
    """Notes down finished documents while others are computed.

    It is a context manager, which is left when all are noted down. Those that finish during one
    transaction share the next, because every transaction waits for the disk.

    Args:
        write: notes down documents, given their numbers.
    """

    def __init__(self, write: Callable[[Sequence[int]], Awaitable[None]]) -> None:
        self._write = write
        self._ready: list[int] = []
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writing is not None:
            await self._writing

    def add(self, number: int) -> None:
        """A document is finished.

        Raises:
            DiskFull: Those before could not be noted down.
        """
        self._ready.append(number)
        if self._writing is None or self._writing.done():
            if self._writing is not None:
                self._writing.result()
            self._writing = asyncio.create_task(self._write_ready())

    async def _write_ready(self) -> None:
        while self._ready:
            numbers, self._ready = self._ready, []
            await self._write(numbers)
