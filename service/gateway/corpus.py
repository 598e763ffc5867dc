"""The use case of the corpus: ingest, list, delete. Knows no HTTP and no tensors.

    submit ── jobs.sqlite3 ──> _index loop ── retriever ──> _compute loop ── worker ──> done
    delete ── owed purges ───────────────────────────────────────┘

Both loops read what to do from the job store, so that a restart simply goes on. Purges are
in purges.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from retriever import Document, DocumentPage, StoredDocument
from service.errors import KvstitchError, NotFound, Overloaded, WorkerUnavailable
from service.gateway.job_records import Job, Spooled
from service.gateway.jobs import JobStore
from service.gateway.library import Library
from service.gateway.prompts import Prompts
from service.gateway.purges import CALL_CHUNKS, Purges
from service.gateway.worker import Worker
from service.messages import Chunk
from service.metrics import JOB_STATES, Metrics

logger = logging.getLogger(__name__)
T = TypeVar("T")

BATCH_DOCUMENTS = 32
BATCH_CHARS = 100_000  # small enough for steady progress, large enough to embed in batches
MAX_CRASHES = 3  # a document that was under way when the worker died this often is given up
PAUSE_S = 0.5  # after a failure, before the next attempt


@dataclass(frozen=True)
class Deleted:
    """`kv` is None where the worker is away: the purge is noted and made when it is back."""

    doc_id: str
    chunks: int
    kv: dict[str, int] | None


class Corpus:
    """Between start() and close() its two loops work off the job store."""

    def __init__(
        self, jobs: JobStore, library: Library, worker: Worker, prompts: Prompts, metrics: Metrics
    ) -> None:
        self._jobs = jobs
        self._library = library
        self._worker = worker
        self._prompts = prompts
        self._metrics = metrics
        self._purges = Purges(jobs, library, worker, prompts)
        self._to_index = asyncio.Event()
        self._to_compute = asyncio.Event()
        self._crashes: Counter[int] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """The library must have been started; the worker may come later."""
        await self._count()
        self._tasks = [
            asyncio.create_task(self._forever(self._index, self._to_index)),
            asyncio.create_task(self._forever(self._compute, self._to_compute)),
        ]

    async def close(self) -> None:
        """Stop after the step under way; what is left is resumed at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- what the routes call --------------------------------------------------------------------

    async def submit(self, documents: Sequence[dict[str, Any]]) -> Job:
        """Accept documents ({doc_id, text, title, metadata}); on return they are on disk."""
        job_id = await self._db(lambda: self._jobs.add(documents))
        self._to_index.set()
        return await self.job(job_id)

    async def job(self, job_id: str) -> Job:
        job = await self._db(lambda: self._jobs.get(job_id))
        if job is None:
            raise NotFound(
                f"job_id: there is no job {job_id!r}; use what POST /admin/precompute answered",
                field="job_id",
            )
        return job

    async def states(self) -> dict[str, int]:
        """How many jobs are in each state."""
        return await self._db(self._jobs.states)

    async def documents(self, limit: int, cursor: str | None) -> DocumentPage:
        self._library.require()
        return await self._library.page(limit, cursor)

    async def document(self, doc_id: str) -> StoredDocument:
        self._library.require()
        found = await self._library.get(doc_id)
        if found is None:
            raise NotFound(
                f"doc_id: there is no document {doc_id!r}; GET /admin/documents lists them",
                field="doc_id",
            )
        return found

    async def delete(self, doc_id: str) -> Deleted:
        """Remove text, vectors and KV in every tier. Raises NotFound."""
        async with self._purges.changing:
            await self.document(doc_id)
            await self._purges.note([doc_id])
            removed = await self._library.delete(doc_id)
        await self._count()
        copies: dict[str, int] | None = None
        with contextlib.suppress(KvstitchError):  # the compute loop tries again
            self._worker.require()
            copies = await self._purges.make(doc_id)
        self._to_compute.set()
        await self._library.save()
        return Deleted(doc_id, len(removed), copies)

    # -- the index loop --------------------------------------------------------------------------

    async def _index(self) -> bool:
        """Index one batch; False if there was none."""
        spooled = await self._db(lambda: self._jobs.pending(BATCH_DOCUMENTS, BATCH_CHARS))
        batch = _distinct(spooled)
        if not batch:
            return False
        async with self._purges.changing:
            await self._purges.note([item.doc_id for item in batch])
            documents = [Document(**(item.payload or {})) for item in batch]
            results = await self._library.ingest(documents)
            failed = [
                (item.number, str(result.error))
                for item, result in zip(batch, results, strict=True)
                if result.error is not None
            ]
            indexed = [
                (item.number, result.status, len(result.chunks))
                for item, result in zip(batch, results, strict=True)
                if result.error is None
            ]
            await self._db(lambda: self._jobs.set_failed(failed))
            await self._db(lambda: self._jobs.set_indexed(indexed))
        self._to_compute.set()
        if len(batch) == len(spooled) < BATCH_DOCUMENTS:
            await self._library.save()
        await self._count()
        return True

    # -- the compute loop ------------------------------------------------------------------------

    async def _compute(self) -> bool:
        """Make the owed purges, then store the KV of some documents; False if there were none."""
        await self._worker.wait_ready()
        await self._purges.make()
        # After a crash one by one: the document that brings the worker down must not stop others.
        limit = 1 if self._crashes else BATCH_DOCUMENTS
        batch = await self._db(lambda: self._jobs.indexed(limit))
        try:
            await self._precompute(batch)
        except WorkerUnavailable:
            await self._after_crash(batch)
            raise
        await self._count()
        return bool(batch)

    async def _precompute(self, batch: Sequence[Spooled]) -> None:
        left: Counter[int] = Counter()
        errors: dict[int, str] = {}
        work: list[tuple[Spooled, Chunk]] = []
        for item in batch:
            for chunk in await self._library.chunks_of(item.doc_id):
                work.append((item, Chunk(chunk.chunk_id, self._prompts.segment(chunk))))
                left[item.number] += 1
        await self._finish([item.number for item in batch if not left[item.number]], errors)
        await self._db(
            lambda: self._jobs.note_contents([(chunk.chunk_id, chunk.ids) for _, chunk in work])
        )
        for start in range(0, len(work), CALL_CHUNKS):
            part = work[start : start + CALL_CHUNKS]
            numbers = {chunk.chunk_id: item.number for item, chunk in part}
            replies = self._worker.precompute(
                self._prompts.system, [chunk for _, chunk in part], self._prompts.prefix_mode, ""
            )
            try:
                async for reply in replies:
                    number = numbers[reply.chunk_id]
                    left[number] -= 1
                    if reply.status == "failed":
                        errors[number] = f"its KV was not stored: {reply.message}"
                    if not left[number]:
                        await self._finish([number], errors)
            except (WorkerUnavailable, Overloaded):
                raise
            except KvstitchError as error:
                errors |= {item.number: error.message for item, _ in part}
                await self._finish(sorted({item.number for item, _ in part}), errors)
            await self._purges.note_gone([(item.doc_id, chunk) for item, chunk in part])

    async def _finish(self, numbers: Sequence[int], errors: dict[int, str]) -> None:
        failed = [(n, errors[n]) for n in numbers if n in errors]
        done = [n for n in numbers if n not in errors]
        for number in numbers:
            self._crashes.pop(number, None)
        await self._db(lambda: self._jobs.set_failed(failed))
        await self._db(lambda: self._jobs.set_done(done))

    async def _after_crash(self, batch: Sequence[Spooled]) -> None:
        open_now = {item.number for item in await self._db(lambda: self._jobs.indexed(len(batch)))}
        for item in batch:
            if item.number in open_now:
                self._crashes[item.number] += 1
        given_up = [n for n, crashes in self._crashes.items() if crashes >= MAX_CRASHES]
        await self._finish(
            given_up,
            {n: f"the worker died {MAX_CRASHES} times while computing its KV" for n in given_up},
        )

    # -- inside ----------------------------------------------------------------------------------

    async def _forever(self, step: Callable[[], Any], wake: asyncio.Event) -> None:
        """Run `step` while it finds work; otherwise until `wake`. It outlives every failure."""
        while True:
            wake.clear()
            try:
                if not await step():
                    await wake.wait()
            except (WorkerUnavailable, Overloaded) as error:
                logger.info("ingest waits: %s", error)
                await asyncio.sleep(PAUSE_S)
            except Exception:
                logger.exception("ingest failed unexpectedly; it is tried again")
                await asyncio.sleep(10 * PAUSE_S)

    async def _count(self) -> None:
        counts = await self._library.counts()
        self._metrics.documents.set(counts.documents)
        self._metrics.chunks.set(counts.chunks)
        states = await self.states()
        for state in JOB_STATES:
            self._metrics.jobs.labels(state).set(states.get(state, 0))

    async def _db(self, run: Callable[[], T]) -> T:
        return await asyncio.to_thread(run)


def _distinct(items: Sequence[Spooled]) -> list[Spooled]:
    """Up to the first document that comes again: its chunks must be noted in between."""
    out: list[Spooled] = []
    seen: set[str] = set()
    for item in items:
        if item.doc_id in seen:
            break
        seen.add(item.doc_id)
        out.append(item)
    return out
