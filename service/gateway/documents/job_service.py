"""Ingest jobs: accept documents, tell how far they are, cancel them.

A tenant sees its own jobs, and cannot tell whether another tenant has a job of some id. A key sees
those whose documents it may read, all of them; of a document that others have taken from it since,
the job says nothing any more. It cancels those whose sender writes for one of its groups.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from kvstitch.records.documents import Job, JobFault, JobList, JobPhase, JobStep, WarnedDocument
from kvstitch.retriever import Document
from kvstitch.service.errors import Conflict, DiskFull, InvalidRequest, NotAWriter, NotFound
from kvstitch.service.gateway.auth.access import Principal
from kvstitch.service.gateway.auth.quotas import Quotas
from kvstitch.service.gateway.data_folder import DiskGuard
from kvstitch.service.gateway.documents.deletion.purge_queue import PurgeQueue
from kvstitch.service.gateway.documents.ingestion import Ingestion
from kvstitch.service.gateway.documents.jobs.job_records import IngestDocument, StoredJob
from kvstitch.service.gateway.documents.jobs.job_store import MAX_ERRORS, JobStore
from kvstitch.service.gateway.documents.pace import Seconds
from kvstitch.service.gateway.search.async_retriever import AsyncRetriever
from kvstitch.service.gateway.search.search_query import document_scope
from kvstitch.service.gateway.service_database import AlreadyThere

T = TypeVar("T", JobFault, WarnedDocument, JobStep)
SPOOL_BYTES = 1 << 20  # of documents in one transaction while they come in
DOCUMENT_BYTES = 1024  # that a document counts in addition to its text


class JobService:
    def __init__(
        self,
        jobs: JobStore,
        purges: PurgeQueue,
        ingestion: Ingestion,
        retriever: AsyncRetriever,
        *,
        quotas: Quotas,
        disk: DiskGuard,
        most_jobs: int,
    ) -> None:
        self._jobs = jobs
        self._purges = purges
        self._ingestion = ingestion
        self._retriever = retriever
        self._quotas = quotas
        self._disk = disk
        self._most_jobs = most_jobs
        self._not_dropped: set[str] = set()  # refused, but there was no room to forget them
        self._keys_in_use: set[tuple[str, str]] = set()  # (tenant, idempotency key)

    async def submit(
        self,
        principal: Principal,
        documents: AsyncIterator[IngestDocument],
        idempotency_key: str | None = None,
    ) -> Job:
        """Accept documents as they come in: on return all of them are on disk, or none. The same
        key with the same documents gets the same job.

        Raises Conflict if a request of the sender with the same key is in flight, InvalidRequest if
        it was used for other documents, DiskFull, QuotaExceeded, NotAWriter if a document would
        have readers or writers that the sender is none of, and what reading the documents raises.
        """
        tenant = principal.tenant
        if idempotency_key is not None and principal.key_id:  # others' tell nothing
            idempotency_key = f"{principal.key_id}\n{idempotency_key}"
        with self._exclusive_use(tenant, idempotency_key):
            await self._drop()
            who = principal.view, principal.pen, principal.key_id, self._most_jobs
            job_id = await asyncio.to_thread(self._jobs.begin, tenant, *who)
            readers: set[str] = set()
            check = partial(self._quotas.check_stored, principal.limits)
            try:
                digest = await self._spool(job_id, self._allowed(documents, principal, readers))
                known = await self._known(tenant, idempotency_key)
                if known is None:
                    try:
                        await asyncio.to_thread(
                            self._jobs.accept,
                            job_id,
                            idempotency_key,
                            digest,
                            readers=readers,
                            check=check if self._quotas.limits_stored(principal.limits) else None,
                        )
                    except AlreadyThere:  # by another gateway, since we looked
                        known = await self._known(tenant, idempotency_key)
                        if known is None:  # and it was pruned since
                            raise Conflict("send it again", retry_after_s=1.0) from None
                if known is not None:
                    await asyncio.to_thread(self._jobs.drop, job_id)
                    return await self._find_repeated(principal, idempotency_key, known, digest)
            except BaseException:
                self._not_dropped.add(job_id)
                await asyncio.shield(self._drop())
                raise
        self._ingestion.indexing.wake()
        return await self.get(principal, job_id)

    async def get(self, principal: Principal, job_id: str, max_errors: int = MAX_ERRORS) -> Job:
        """Return one job, with the errors of so many documents that failed; raises NotFound."""
        stored = await self._stored(principal, job_id, max_errors)
        return await self._job_for(stored, principal, await self._stopped_by())

    async def page(
        self, principal: Principal, limit: int, cursor: str | None, state: str | None
    ) -> JobList:
        found, next_cursor = await asyncio.to_thread(
            self._jobs.page, principal.tenant, limit, cursor, state, principal.view
        )
        stopped_by = await self._stopped_by()
        jobs = [await self._job_for(job, principal, stopped_by) for job in found]
        return JobList(jobs=jobs, next_cursor=next_cursor)

    async def cancel(self, principal: Principal, job_id: str) -> Job:
        """Cancel the documents of a job that are not done; raises NotFound, NotAWriter, or Conflict
        if it has ended."""
        async with self._purges.catalog_lock:  # not while a batch is being indexed
            stored = await self._stored(principal, job_id)
            job = stored.job
            if not principal.pen.changes(stored.writers):
                raise NotAWriter("the job was sent by others: they may cancel it", field="job_id")
            if job.ended and job.state != "cancelled":
                raise Conflict(f"the job has {job.state} already: there is nothing to cancel")
            indexed = await asyncio.to_thread(self._jobs.cancel, job_id)
            await self._ingestion.cancel(job_id, indexed)
        await self._ingestion.refresh_gauges()
        await asyncio.to_thread(self._jobs.database.scrub)
        return await self.get(principal, job_id)

    async def states(self) -> dict[str, int]:
        return await asyncio.to_thread(self._jobs.states)

    async def _stopped_by(self) -> str | None:
        """Return why no open job goes on at the moment; None if they do."""
        return await asyncio.to_thread(self._disk.reason)

    async def _stored(
        self, principal: Principal, job_id: str, max_errors: int = MAX_ERRORS
    ) -> StoredJob:
        job = await asyncio.to_thread(
            self._jobs.get, job_id, principal.tenant, max_errors, principal.view
        )
        if job is None:
            raise NotFound(
                f"job_id: there is no job {job_id!r}; GET /admin/jobs lists them", field="job_id"
            )
        return job

    async def _job_for(
        self, stored: StoredJob, principal: Principal, stopped_by: str | None
    ) -> Job:
        """Return what a sender is told of a job: how long it takes, what it waits for, and nothing
        of documents that they may not read now."""
        job, steps = stored.job, self._steps(stored.job)
        if not job.ended:
            waits_for = stopped_by
            if steps and all(step.step == "waiting" for _, step in steps):
                waits_for = waits_for or "other documents that take long come first"
            elif job.state == "queued" and not steps and stored.ahead.earlier:
                waits_for = waits_for or "documents that were sent earlier come first"
            phase: JobPhase | None = None
            if not stored.pending:
                phase = "precomputing"
                waits_for = waits_for or self._ingestion.waits_for
            elif job.state == "running" or not stored.ahead.earlier:
                phase = self._ingestion.stage.step
            job = replace(job, phase=phase, waiting=waits_for)
            if not stopped_by and (takes := self._time_for(stored)) is not None:
                low, eta, high = map(float, takes)
                job = replace(job, eta_s=eta, eta_low_s=low, eta_high_s=high)
        told: list[tuple[str, JobFault | WarnedDocument | JobStep]] = [
            *stored.errors, *stored.warnings, *steps
        ]  # fmt: skip
        hidden = await self._hidden(principal, [(where, one.doc_id) for where, one in told])

        def shown(told: list[tuple[str, T]]) -> list[T]:
            return [one for collection, one in told if (collection, one.doc_id) not in hidden]

        errors = shown(stored.errors)
        if len(errors) < len(stored.errors):  # the sender learns that it failed, not of which
            errors.append(JobFault(doc_id="", message="documents that you may not read now failed"))
        return replace(job, errors=errors, warnings=shown(stored.warnings), steps=shown(steps))

    def _time_for(self, stored: StoredJob) -> Seconds | None:
        """Return how long a job takes still; None if that is not known."""
        aside = self._ingestion.stage.long.of_job(stored.job.job_id)
        takes = self._ingestion.time_for(stored.ahead, sum(each.item.size for each in aside))
        if aside and takes is not None:
            known = [each.eta_s for each in aside if each.eta_s is not None]
            if len(known) < len(aside):
                return None
            takes = takes + max(known)
        return takes

    def _steps(self, job: Job) -> list[tuple[str, JobStep]]:
        """Return how far a job's documents are that take long, each with its collection."""
        return [
            (each.item.collection, JobStep(doc_id=each.item.doc_id, step=each.step,
                                           done=each.done, total=each.total, eta_s=each.eta_s))
            for each in ([] if job.ended else self._ingestion.stage.long.of_job(job.job_id))
        ]  # fmt: skip

    async def _hidden(
        self, principal: Principal, named: list[tuple[str, str]]
    ) -> set[tuple[str, str]]:
        """Return those of these (collection, document) that the sender may not read now."""
        hidden: set[tuple[str, str]] = set()
        if principal.view.groups is None:
            return hidden
        for collection in {collection for collection, _ in named}:
            names = [name for where, name in named if where == collection]
            scope = document_scope(principal, collection)
            readers = await self._retriever.run(
                self._retriever.catalog.readers_of, names, scope=scope
            )
            hidden |= {(collection, n) for n in readers if not scope.view.shows(readers[n])}
        return hidden

    async def _allowed(
        self, documents: AsyncIterator[IngestDocument], principal: Principal, readers: set[str]
    ) -> AsyncIterator[IngestDocument]:
        """Yield documents that their sender may store, and add what readers they have. Groups of
        others may be named that what is stored has already."""
        view, pen, catalog = principal.view, principal.pen, self._retriever.catalog
        async for each in documents:
            if not (view.may_give(each.readers) and pen.may_give(each.writers or "", "")):
                named = Document(each.doc_id, "", readers=each.readers, writers=each.writers)
                scope = document_scope(principal, each.collection)
                await self._retriever.change(catalog.same, named, "", scope=scope)
            readers.add(each.readers)
            yield each

    async def _drop(self) -> None:
        """Forget jobs that were refused; deleting, too, needs some room."""
        with contextlib.suppress(DiskFull):
            for job_id in list(self._not_dropped):
                await asyncio.to_thread(self._jobs.drop, job_id)
                self._not_dropped.discard(job_id)

    async def _spool(self, job_id: str, documents: AsyncIterator[IngestDocument]) -> bytes:
        """Write documents to disk as they come; returns the digest of all of them."""
        digest = hashlib.sha256()
        batch: list[IngestDocument] = []
        size = 0

        async for document in documents:
            batch.append(document)
            size += document.size + DOCUMENT_BYTES
            if size >= SPOOL_BYTES:
                digest.update(await asyncio.to_thread(self._jobs.spool, job_id, batch))
                batch, size = [], 0
        digest.update(await asyncio.to_thread(self._jobs.spool, job_id, batch))
        return digest.digest()

    async def _known(self, tenant: str, key: str | None) -> tuple[str, bytes] | None:
        """Return id and digest of the job that was accepted with this key, if there is one."""
        return None if key is None else await asyncio.to_thread(self._jobs.find, tenant, key)

    async def _find_repeated(
        self, principal: Principal, key: str | None, known: tuple[str, bytes], digest: bytes
    ) -> Job:
        """Return the job that was accepted with this key, if it had the same documents."""
        job_id, known_digest = known
        if digest != known_digest:
            raise InvalidRequest(
                "the Idempotency-Key was used for other documents: send a new key with them",
                field="Idempotency-Key",
            )
        return await self.get(principal, job_id)

    @contextlib.contextmanager
    def _exclusive_use(self, tenant: str, key: str | None) -> Iterator[None]:
        """Claim an idempotency key for one request."""
        if key is None:
            yield
            return
        if (tenant, key) in self._keys_in_use:
            raise Conflict(
                "a request with this Idempotency-Key is under way: wait for its answer",
                retry_after_s=1.0,
            )
        self._keys_in_use.add((tenant, key))
        try:
            yield
        finally:
            self._keys_in_use.remove((tenant, key))
