"""Documents that take long: they are read and embedded beside all others, in shares.

    batch ── long? ── waits ── read ── cut ── a part is embedded … ── stored as others are
                                              └── others' texts in between

A document is long by its bytes, by its text, or because reading it takes long. Some are worked on
at a time, of as many tenants as possible. Nothing of this is on disk: after a restart they are
pending as all others.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvstitch.service.errors import KvstitchError
from kvstitch.service.gateway.documents.background_loop import RETRY_UNEXPECTED_S, retry_after_s
from kvstitch.service.gateway.documents.jobs.document_queue import DocumentQueue
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument
from kvstitch.service.gateway.documents.parsing.parser import DocumentParser, ParsedDocument
from kvstitch.service.gateway.search.async_retriever import AsyncRetriever

logger = logging.getLogger(__name__)

AT_A_TIME = 3
MOST_WAITING = 64
PART_CHUNKS = 16  # that others' texts wait for: half a second of one core


@dataclass
class LongDocument:
    """One that is being worked on, or waits for that."""

    item: IngestDocument
    parsed: ParsedDocument | None = None
    step: Literal["waiting", "reading", "embedding"] = "waiting"
    done: int = 0
    total: int = 0
    began: float = field(default_factory=time.monotonic)
    task: asyncio.Task[None] | None = None

    @property
    def eta_s(self) -> float | None:
        """Seconds until it is embedded, at its pace so far; None if that is not known."""
        if not self.done:
            return None
        return (time.monotonic() - self.began) / self.done * (self.total - self.done)


class LongDocuments:
    """Works on long documents, each in a task of its own."""

    def __init__(
        self,
        parser: DocumentParser,
        retriever: AsyncRetriever,
        queue: DocumentQueue,
        store: Callable[[Sequence[ParsedDocument]], Awaitable[None]],
    ) -> None:
        self._parser = parser
        self._retriever = retriever
        self._queue = queue
        self._store = store
        self._long: dict[int, LongDocument] = {}
        self._held: set[int] = set()
        self.on_end: Callable[[], None] = lambda: None

    @property
    def numbers(self) -> set[int]:
        """Of pending documents that batches leave alone: long ones, and their next revisions."""
        return self._long.keys() | self._held

    @property
    def full(self) -> bool:
        """Whether so many wait that no more need be found."""
        return len(self._long) >= MOST_WAITING

    def add(self, item: IngestDocument, parsed: ParsedDocument | None = None) -> None:
        """Take a document over; what was read of it is kept if it comes next."""
        free = sum(each.task is not None for each in self._long.values()) < AT_A_TIME
        self._long[item.number] = LongDocument(item, parsed if free else None)
        self._start()

    def holds_back(self, item: IngestDocument) -> bool:
        """Return whether an earlier revision of a document is worked on here: it comes first."""
        earlier = any(each.item.key == item.key for each in self._long.values())
        if earlier:
            self._held.add(item.number)
        return earlier

    def of_job(self, job_id: str) -> list[LongDocument]:
        return [each for each in self._long.values() if each.item.job_id == job_id]

    def cancel(self, job_id: str) -> None:
        """End the work on a job's documents now."""
        for each in self.of_job(job_id):
            if each.task is not None:
                each.task.cancel()
            else:
                self._long.pop(each.item.number)

    async def close(self) -> None:
        """End all work; the next start begins again."""
        tasks = [each.task for each in self._long.values() if each.task is not None]
        self._long.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self) -> None:
        """Begin with those that are next: of the tenant that has fewest under way, the oldest."""
        while True:
            working = [each for each in self._long.values() if each.task is not None]
            waiting = [each for each in self._long.values() if each.task is None]
            if not waiting or len(working) >= AT_A_TIME:
                return
            under_way = Counter(each.item.tenant for each in working)
            first = min(waiting, key=lambda each: (under_way[each.item.tenant], each.item.number))
            first.task = asyncio.create_task(self._work(first), name="long document")

    async def _work(self, each: LongDocument) -> None:
        try:
            await self._index(each)
        except Exception as error:
            pause_s = retry_after_s(error)
            if pause_s is None and isinstance(error, KvstitchError):
                failed = [(each.item, error.message)]
                await asyncio.to_thread(self._queue.set_failed, failed)
            else:  # it stays pending, and is begun again
                if pause_s is None:
                    logger.exception("a long document failed unexpectedly; it is tried again")
                await asyncio.sleep(RETRY_UNEXPECTED_S if pause_s is None else pause_s)
        finally:
            self._long.pop(each.item.number, None)
            self._held.clear()
            self._start()
            self.on_end()
            # If it was cancelled, these would hold each other, and the text.
            each.parsed = each.task = None
            self._retriever.give_back_memory()

    async def _index(self, each: LongDocument) -> None:
        if each.parsed is None:
            each.step, each.began = "reading", time.monotonic()
            each.parsed = await self._parser.document(each.item)
        parsed = each.parsed
        await self._retriever.split(parsed)
        each.step, each.began = "embedding", time.monotonic()
        each.total = len(parsed.spans)
        while each.done < each.total:
            number = each.item.number
            if not await asyncio.to_thread(self._queue.still_in, "pending", [number]):
                return
            await self._retriever.embed_part(parsed, each.done, PART_CHUNKS)
            each.done = min(each.total, each.done + PART_CHUNKS)
        await self._store([parsed])
