"""The client for coroutines; scripts/sync_client.py makes the other one of it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from kvstitch.client import calls
from kvstitch.client.calls import Call
from kvstitch.client.connection import FAULTS, Attempts, Connection, OnProgress, Pages, Waiting
from kvstitch.client.errors import from_transport
from kvstitch.client.events import Event, EventReader
from kvstitch.client.options import (
    File,
    GenerateOptions,
    NewDocument,
    SearchOptions,
    async_read_files,
    form_fields,
)
from kvstitch.client.results import (
    Answer,
    Collection,
    Document,
    Embeddings,
    Explanation,
    Job,
    Methods,
    Receipt,
    Reranking,
    SearchResults,
)

T = TypeVar("T")


class AsyncAnswerStream:
    """A streamed answer: iterate it once, then `result` is the whole answer.

    Leaving it early, by `close` or the end of an `async with`, ends the answer in the service.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._reader = EventReader(response)

    @property
    def result(self) -> Answer:
        """The whole answer, once the last event has come.

        Raises:
            UnexpectedResponse: It has not.
        """
        return self._reader.result

    async def __aiter__(self) -> AsyncIterator[Event]:
        response = self._reader.response
        try:
            async for line in response.aiter_lines():
                if (event := self._reader.event(line)) is not None:
                    yield event
        except FAULTS as fault:
            raise from_transport(fault, str(response.url)) from fault
        finally:
            await self.close()
        self._reader.check_whole()

    async def close(self) -> None:
        """Leave the stream; the service then ends the answer."""
        await self._reader.response.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncClient:
    """A service, for coroutines. Close it, or use it in an `async with`.

    Every call raises `kvstitch.client.errors.KvstitchError`: `ServiceError` and its kinds where
    the service refused, `ConnectionFailed` where nothing answered.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        max_retries: int = 2,
        max_wait_s: float = 30.0,
    ) -> None:
        """Nothing is sent yet.

        Args:
            base_url: Of the service; None: KVSTITCH_URL, else http://localhost:8000.
            api_key: None: KVSTITCH_API_KEY, else none is sent.
            timeout_s: Longest silence of the service within a call.
            max_retries: How often a call is repeated: after a 429 or 503 with Retry-After, and
                after a connection failed if sending twice is the same as sending once.
            max_wait_s: A call is not repeated if the service asks to wait longer.

        Raises:
            InvalidRequest: The key has characters that no key has.
        """
        self._connection = Connection.make(
            base_url,
            api_key,
            timeout_s=timeout_s,
            max_retries=max_retries,
            max_wait_s=max_wait_s,
        )
        self._http = httpx.AsyncClient(**self._connection.for_httpx())

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # -- asking ----------------------------------------------------------------------------------

    async def generate(
        self, question: str | None = None, **options: Unpack[GenerateOptions]
    ) -> Answer:
        """An answer, whole; `question`, or the option `messages`."""
        return await self._send(calls.generate(question, options))

    async def stream(
        self, question: str | None = None, **options: Unpack[GenerateOptions]
    ) -> AsyncAnswerStream:
        """An answer as events while it is generated."""
        call = calls.stream(question, options)
        return AsyncAnswerStream(await self._open(call, Attempts(call, self._connection)))

    async def explain(
        self, question: str | None = None, **options: Unpack[GenerateOptions]
    ) -> Explanation:
        """What an answer would take; nothing is generated."""
        return await self._send(calls.explain(question, options))

    async def search(self, query: str, **options: Unpack[SearchOptions]) -> SearchResults:
        """The passages that an answer would be given."""
        return await self._send(calls.search(query, options))

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        model: str | None = None,
    ) -> Reranking:
        """Texts, best first, by the service's reranker."""
        return await self._send(calls.rerank(query, documents, top_n, model))

    async def embeddings(self, texts: Sequence[str], *, model: str | None = None) -> Embeddings:
        """Vectors of texts, by the service's embedder."""
        return await self._send(calls.embeddings(texts, model))

    async def methods(self) -> Methods:
        """Fusion and eviction methods, their parameters, and the defaults."""
        return await self._send(calls.methods())

    async def status(self) -> dict[str, Any]:
        """The state of the service: model, corpus, tiers, requests in flight."""
        return await self._send(calls.status())

    # -- documents in ----------------------------------------------------------------------------

    async def precompute(
        self,
        documents: Sequence[NewDocument],
        *,
        collection: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Hand documents in: they are on disk when this returns; `wait` waits for their KV.

        Args:
            documents: New ones, or new revisions.
            collection: Of documents that name none.
            idempotency_key: With the same one, the same documents are taken once; None: one that
                is used for this call and its retries only.
        """
        key = idempotency_key or uuid.uuid4().hex
        return await self._send(calls.precompute(documents, collection, key))

    async def precompute_files(
        self,
        files: Iterable[File],
        *,
        collection: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Hand files in, Markdown, text, HTML or PDF; their names become document ids.

        Args:
            files: Paths, or pairs of name and content.
            collection: Of all of them.
            metadata: Of all of them.
            idempotency_key: As for `precompute`.
        """
        key = idempotency_key or uuid.uuid4().hex
        contents = await async_read_files(files)
        fields = form_fields(collection, metadata)
        return await self._send(calls.precompute_files(contents, fields, key))

    async def precompute_lines(
        self,
        lines: Iterable[bytes],
        *,
        collection: str | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Hand documents in as lines of JSON (NDJSON), each as `precompute` takes one.

        Args:
            lines: Without line breaks.
            collection: Of documents that name none.
            idempotency_key: As for `precompute`.
        """
        key = idempotency_key or uuid.uuid4().hex
        return await self._send(calls.precompute_lines(lines, collection, key))

    async def ingest(
        self,
        documents: Sequence[NewDocument],
        *,
        collection: str | None = None,
        on_progress: OnProgress | None = None,
        timeout_s: float | None = None,
    ) -> Job:
        """`precompute`, then `wait`. Documents that failed are in the job's `errors`."""
        job = await self.precompute(documents, collection=collection)
        return await self.wait(job, on_progress=on_progress, timeout_s=timeout_s)

    async def ingest_files(
        self,
        files: Iterable[File],
        *,
        collection: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        on_progress: OnProgress | None = None,
        timeout_s: float | None = None,
    ) -> Job:
        """`precompute_files`, then `wait`. Files that failed are in the job's `errors`."""
        job = await self.precompute_files(files, collection=collection, metadata=metadata)
        return await self.wait(job, on_progress=on_progress, timeout_s=timeout_s)

    # -- jobs ------------------------------------------------------------------------------------

    async def get_job(self, job_id: str, *, errors: int | None = None) -> Job:
        """Return a job with at most so many of its errors; None: the service's default."""
        return await self._send(calls.get_job(job_id, errors))

    def list_jobs(
        self, *, state: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Job]:
        """Jobs, newest first, page by page; at most `limit`."""
        return self._items(Pages(partial(calls.job_page, state), limit))

    async def cancel_job(self, job_id: str) -> Job:
        """Leave what is not done. Conflict: the job has ended."""
        return await self._send(calls.cancel_job(job_id))

    async def wait(
        self,
        job: Job | str,
        *,
        on_progress: OnProgress | None = None,
        timeout_s: float | None = None,
    ) -> Job:
        """Wait until a job has ended, however it ends.

        Args:
            job: The job or its id.
            on_progress: Called with the job, first and whenever something changed.
            timeout_s: Longest time to wait.

        Raises:
            WaitedTooLong: The time is up; the job goes on.
        """
        waiting = Waiting(on_progress, timeout_s)
        found = await self.get_job(job if isinstance(job, str) else job.job_id)
        while (pause_s := waiting.pause_before_next(found)) is not None:
            await asyncio.sleep(pause_s)
            found = await self.get_job(found.job_id)
        return found

    # -- stored documents ------------------------------------------------------------------------

    async def get_document(self, doc_id: str, *, collection: str | None = None) -> Document:
        """A document with its text."""
        return await self._send(calls.get_document(doc_id, collection))

    def list_documents(
        self, *, collection: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Document]:
        """Documents by doc_id, page by page, without their texts; at most `limit`."""
        return self._items(Pages(partial(calls.document_page, collection), limit))

    async def delete_document(self, doc_id: str, *, collection: str | None = None) -> Receipt:
        """Remove a document: text, vectors, and KV in every tier. NotFound: there is none."""
        return await self._send(calls.delete_document(doc_id, collection))

    async def delete_documents(
        self,
        doc_ids: Sequence[str] | None = None,
        *,
        filter: Mapping[str, Any] | None = None,
        collection: str | None = None,
    ) -> Receipt:
        """Remove documents by id, or by what their metadata says; unknown ids are ignored."""
        return await self._send(calls.delete_documents(doc_ids, filter, collection))

    async def get_receipt(self, receipt_id: str) -> Receipt:
        """A deletion's receipt, and whether anything is still owed."""
        return await self._send(calls.get_receipt(receipt_id))

    async def pin_document(self, doc_id: str, *, collection: str | None = None) -> Document:
        """Keep a document's KV stored, until it is unpinned."""
        return await self._send(calls.pin(doc_id, collection, pinned=True))

    async def unpin_document(self, doc_id: str, *, collection: str | None = None) -> Document:
        """Let a document's KV be evicted like any other."""
        return await self._send(calls.pin(doc_id, collection, pinned=False))

    async def collections(self) -> list[Collection]:
        """Return the collections that have documents."""
        return await self._send(calls.collections())

    async def delete_collection(self, collection: str) -> Receipt:
        """Remove a collection's documents: texts, vectors, and KV in every tier."""
        return await self._send(calls.delete_collection(collection))

    # -- sending ---------------------------------------------------------------------------------

    async def _send(self, call: Call[T]) -> T:
        attempts = Attempts(call, self._connection)
        response = await self._open(call, attempts)
        try:
            await response.aread()
        except FAULTS as fault:
            raise from_transport(fault, self._connection.base_url) from fault
        finally:
            await response.aclose()
        return attempts.result(response)

    async def _open(self, call: Call[T], attempts: Attempts[T]) -> httpx.Response:
        """The response that counts, before its body is read; an error is raised."""
        while True:
            try:
                request = self._http.build_request(
                    call.method, call.path, headers=dict(call.headers), **call.content
                )
                response = await self._http.send(request, stream=True)
                if response.is_success:
                    return response
                await response.aread()
                pause_s = attempts.pause_after(response)
            except FAULTS as fault:
                pause_s = attempts.pause_after_fault(fault)
            await asyncio.sleep(pause_s)

    async def _items(self, pages: Pages[T]) -> AsyncIterator[T]:
        while (call := pages.next_call()) is not None:
            for item in pages.items(await self._send(call)):
                yield item
