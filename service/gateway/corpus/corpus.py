"""The use case of the corpus: ingest, list, delete, pin. Knows no HTTP and no tensors.

    submit ── jobs.sqlite3 ──> indexing.py ── retriever ──> computing.py ── worker ──> done
    delete ── owed purges ─────────────────────────────────────┘

Everybody sees what is of their tenant, and nothing tells whether another tenant has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TypeVar

from retriever import CorpusCounts, DocFilter, DocumentPage, Scope, StoredDocument
from service.errors import Conflict, InvalidRequest, KvstitchError, NotFound
from service.gateway.auth.access import Principal
from service.gateway.auth.quotas import Quotas
from service.gateway.corpus.indexing_loop import IndexingLoop
from service.gateway.corpus.job_records import OPEN_STATES, Job, JobPage, Receipt, UploadedDocument
from service.gateway.corpus.job_store import JobStore
from service.gateway.corpus.precompute_loop import PrecomputeLoop
from service.gateway.corpus.purge_queue import PurgeQueue
from service.gateway.corpus.receipt_store import ReceiptStore
from service.gateway.retrieval.async_retriever import AsyncRetriever

T = TypeVar("T")

SPOOL_BYTES = 1 << 20  # of documents in one transaction while they come in
PAGE = 1000


class Corpus:
    """Between start() and close() two loops work off what was submitted."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        receipts: ReceiptStore,
        retriever: AsyncRetriever,
        purges: PurgeQueue,
        quotas: Quotas,
        indexing: IndexingLoop,
        computing: PrecomputeLoop,
    ) -> None:
        self._jobs = jobs
        self._receipts = receipts
        self._retriever = retriever
        self._purges = purges
        self._quotas = quotas
        self._indexing = indexing
        self._computing = computing
        self._in_flight: set[tuple[str, str]] = set()

    async def start(self) -> None:
        """The library must have been started; the worker may come later."""
        await _db(self._jobs.drop)
        await self._indexing.start()
        await self._computing.start()

    async def close(self) -> None:
        """Stop after the step under way; what is left is resumed at the next start."""
        await self._indexing.close()
        await self._computing.close()

    # -- jobs ------------------------------------------------------------------------------------

    async def submit(
        self,
        principal: Principal,
        documents: AsyncIterator[UploadedDocument],
        idempotency_key: str | None = None,
    ) -> Job:
        """Accept documents as they come in; on return all of them are on disk, or none.

        Raises Conflict while a request with the same key is under way, InvalidRequest if the key
        was used for something else, QuotaExceeded, and what reading the documents raises.
        """
        with self._alone(principal.tenant, idempotency_key):
            job_id = await _db(lambda: self._jobs.begin(principal.tenant))
            try:
                digest = await self._spool(job_id, documents)
                if idempotency_key is not None:
                    known = await _db(lambda: self._jobs.known(principal.tenant, idempotency_key))
                    if known is not None:
                        await _db(lambda: self._jobs.drop(job_id))
                        return await self._again(principal, idempotency_key, known, digest)
                held = await _db(lambda: self._jobs.held(principal.tenant, job_id))
                self._quotas.check_stored(principal.limits, *held)
                await _db(lambda: self._jobs.accept(job_id, idempotency_key, digest))
            except BaseException:
                await asyncio.shield(_db(lambda: self._jobs.drop(job_id)))
                raise
        self._indexing.wake.set()
        return await self.job(principal, job_id)

    async def job(self, principal: Principal, job_id: str) -> Job:
        job = await _db(lambda: self._jobs.get(job_id, principal.tenant))
        if job is None:
            raise NotFound(
                f"job_id: there is no job {job_id!r}; GET /admin/jobs lists them", field="job_id"
            )
        return job

    async def jobs(
        self, principal: Principal, limit: int, cursor: str | None, state: str | None
    ) -> JobPage:
        """Newest first. Raises InvalidRequest for a cursor that was not given out."""
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
            raise InvalidRequest(
                "cursor: pass the next_cursor of the page before, or leave it out", field="cursor"
            )
        before = None if cursor is None else int(cursor)
        return await _db(lambda: self._jobs.page(principal.tenant, limit, before, state))

    async def cancel(self, principal: Principal, job_id: str) -> Job:
        """Leave what is not done. Raises NotFound, Conflict if the job has ended otherwise."""
        async with self._purges.changing:  # not in the middle of a batch
            job = await self.job(principal, job_id)
            if job.state not in (*OPEN_STATES, "cancelled"):
                raise Conflict(f"the job has {job.state} already: there is nothing to cancel")
            await _db(lambda: self._jobs.cancel(job_id))
        await self._indexing.count()
        await _db(self._receipts.scrub)
        return await self.job(principal, job_id)

    async def states(self) -> dict[str, int]:
        """How many jobs of all tenants are in each state."""
        return await _db(self._jobs.states)

    # -- documents -------------------------------------------------------------------------------

    async def documents(
        self, scope: Scope, limit: int, cursor: str | None, where: DocFilter | None = None
    ) -> DocumentPage:
        self._retriever.require()
        return await self._retriever.page(limit, cursor, where, scope=scope)

    async def document(self, scope: Scope, doc_id: str) -> StoredDocument:
        self._retriever.require()
        found = await self._retriever.get(doc_id, scope=scope)
        if found is None:
            raise _no_document(doc_id)
        return found

    async def pin(self, scope: Scope, doc_id: str, pinned: bool) -> StoredDocument:
        """Keep a document's KV stored: what a tier evicts is computed again in spare time."""
        self._retriever.require()
        if not await self._retriever.set_pinned([doc_id], pinned, scope=scope):
            raise _no_document(doc_id)
        self._computing.check_pins()
        return await self.document(scope, doc_id)

    async def collections(self, tenant: str) -> list[tuple[str, CorpusCounts]]:
        self._retriever.require()
        return await self._retriever.collections(tenant)

    # -- deletion --------------------------------------------------------------------------------

    async def delete(self, scope: Scope, doc_id: str) -> Receipt:
        """Remove text, vectors and KV in every tier. Raises NotFound."""
        self._retriever.require()
        async with self._purges.changing:
            waiting = await self._unqueue(scope, [doc_id])
            if not waiting and await self._retriever.get(doc_id, scope=scope) is None:
                raise _no_document(doc_id)
            receipt_id = await self._remove(scope, [doc_id])
        return await self._finish(scope, receipt_id)

    async def delete_matching(
        self, scope: Scope, doc_ids: Sequence[str] | None, where: DocFilter | None
    ) -> Receipt:
        """Remove the documents that are named, or match, or all of the collection."""
        self._retriever.require()
        async with self._purges.changing:
            if where is None:
                waiting = await self._unqueue(scope, doc_ids)
                named = None if doc_ids is None else DocFilter(doc_ids=tuple(doc_ids))
                found = {*waiting, *await self._matching(scope, named)}
            else:
                found = set(await self._matching(scope, where))
            receipt_id = await self._remove(scope, sorted(found))
        return await self._finish(scope, receipt_id)

    async def receipt(self, principal: Principal, receipt_id: str) -> Receipt:
        found = await _db(lambda: self._receipts.get(receipt_id, principal.tenant))
        if found is None:
            raise NotFound(
                f"receipt_id: there is no receipt {receipt_id!r}; use what the deletion answered",
                field="receipt_id",
            )
        return found

    async def _unqueue(self, scope: Scope, doc_ids: Sequence[str] | None) -> list[str]:
        return await _db(
            lambda: self._jobs.cancel_documents(scope.tenant, scope.collection, doc_ids)
        )

    async def _matching(self, scope: Scope, where: DocFilter | None) -> list[str]:
        out: list[str] = []
        cursor: str | None = None
        while True:
            page = await self._retriever.page(PAGE, cursor, where, scope=scope)
            out += [document.doc_id for document in page.documents]
            if (cursor := page.next_cursor) is None:
                return out

    async def _remove(self, scope: Scope, doc_ids: Sequence[str]) -> str:
        notes = await self._purges.notes(scope, doc_ids)
        receipt_id = await _db(
            lambda: self._receipts.open(scope.tenant, scope.collection, doc_ids, notes)
        )
        await self._retriever.delete(*doc_ids, scope=scope)
        return receipt_id

    async def _finish(self, scope: Scope, receipt_id: str) -> Receipt:
        """Purge what can be purged now; the rest stays owed, and the receipt says so."""
        await self._indexing.count()
        await self._retriever.save()
        with contextlib.suppress(KvstitchError):  # the compute loop tries again
            await self._purges.make(receipt_id)
        self._computing.wake.set()
        await _db(self._receipts.scrub)
        found = await _db(lambda: self._receipts.get(receipt_id, scope.tenant))
        assert found is not None
        return found

    # -- inside ----------------------------------------------------------------------------------

    async def _spool(self, job_id: str, documents: AsyncIterator[UploadedDocument]) -> bytes:
        """Write documents down as they come; the digest of all of them."""
        digest = hashlib.sha256()
        batch: list[UploadedDocument] = []
        size = 0
        async for document in documents:
            digest.update(document.digest())
            batch.append(document)
            size += len(document.content) + len(document.meta)
            if size >= SPOOL_BYTES:
                await asyncio.to_thread(self._jobs.spool, job_id, batch)
                batch, size = [], 0
        await asyncio.to_thread(self._jobs.spool, job_id, batch)
        return digest.digest()

    async def _again(
        self, principal: Principal, key: str, known: tuple[str, bytes], digest: bytes
    ) -> Job:
        job_id, first = known
        if digest != first:
            raise InvalidRequest(
                f"Idempotency-Key {key!r} was used for other documents: send a new key with them",
                field="Idempotency-Key",
            )
        return await self.job(principal, job_id)

    @contextlib.contextmanager
    def _alone(self, tenant: str, key: str | None) -> Iterator[None]:
        if key is None:
            yield
            return
        if (tenant, key) in self._in_flight:
            raise Conflict(
                f"a request with the Idempotency-Key {key!r} is under way: wait for its answer",
                retry_after_s=1.0,
            )
        self._in_flight.add((tenant, key))
        try:
            yield
        finally:
            self._in_flight.remove((tenant, key))


def _no_document(doc_id: str) -> NotFound:
    return NotFound(
        f"doc_id: there is no document {doc_id!r}; GET /admin/documents lists them", field="doc_id"
    )


async def _db(run: Callable[[], T]) -> T:
    return await asyncio.to_thread(run)
