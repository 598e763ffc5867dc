"""The client for coroutines, of which sync_client.py makes the other one.

Everything that waits goes through its transport.
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar, Unpack

from kvstitch.client.calls import (
    GENERATE,
    Call,
    delete,
    get,
    given,
    page,
    path_of,
    post,
    submission,
)
from kvstitch.client.connection import AsyncAnswerStream, AsyncTransport, Connection
from kvstitch.client.errors import WaitedTooLong
from kvstitch.client.events import read, read_collections, read_embeddings
from kvstitch.client.options import (
    File,
    GenerateOptions,
    NewDocument,
    SearchOptions,
    UploadOptions,
    read_files,
)
from kvstitch.records.answers import (
    Answer,
    Embeddings,
    Explanation,
    Methods,
    Reranking,
    SearchResults,
)
from kvstitch.records.documents import (
    Collection,
    Document,
    DocumentText,
    Job,
    Receipt,
    SourceDocument,
)

T = TypeVar("T")
OnProgress = Callable[[Job], None]
PAGE_ITEMS = 200
FIRST_POLL_S, LONGEST_POLL_S = 0.1, 2.0  # pauses of `wait`


class AsyncClient:
    """A service, for coroutines. Close it, or use it in an `async with`.

    Every call raises `kvstitch.client.errors.KvstitchError`: `ServiceError` and its kinds where
    the service refused, `ConnectionFailed` where nothing answered.
    """

    _transport_kind: type[AsyncTransport] = AsyncTransport

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
            base_url: URL of the service; None: KVSTITCH_URL, else http://localhost:8000.
            api_key: None: KVSTITCH_API_KEY, else none is sent.
            timeout_s: Longest silence of the service within a call.
            max_retries: How often a call is repeated: after a 429 or 503 with Retry-After, and
                after a connection failed if sending twice is the same as sending once.
            max_wait_s: A call is not repeated if the service asks to wait longer.

        Raises:
            InvalidRequest: The key has characters that no key has.
        """
        self._connection = Connection(
            self._transport_kind,
            base_url,
            api_key,
            timeout_s=timeout_s,
            max_retries=max_retries,
            max_wait_s=max_wait_s,
        )
        self._send = self._connection.send

    async def close(self) -> None:
        await self._connection.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # -- asking ----------------------------------------------------------------------------------

    async def generate(
        self, question: str | None = None, **options: Unpack[GenerateOptions]
    ) -> Answer:
        """An answer, whole; `question`, or the option `messages`."""
        return await self._send(post(GENERATE, Answer, {"question": question, **options}))

    async def stream(
        self, question: str | None = None, **options: Unpack[GenerateOptions]
    ) -> AsyncAnswerStream:
        """An answer as events while it is generated."""
        call = post(GENERATE, Answer, {"question": question, **options, "stream": True})
        return AsyncAnswerStream(await self._connection.open(call), self._connection.transport)

    async def explain(
        self, question: str | None = None, **options: Unpack[GenerateOptions]
    ) -> Explanation:
        """What an answer would take; nothing is generated."""
        body = {"question": question, **options, "explain": True}
        return await self._send(post(GENERATE, Explanation, body))

    async def search(self, query: str, **options: Unpack[SearchOptions]) -> SearchResults:
        """The passages that an answer would be given."""
        return await self._send(post("/v1/search", SearchResults, {"query": query, **options}))

    async def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        model: str | None = None,
    ) -> Reranking:
        """Texts, best first, by the service's reranker."""
        body = {
            "query": query,
            "documents": list(documents),
            "top_n": top_n,
            "model": model,
            "return_documents": True,
        }
        return await self._send(post("/v1/rerank", Reranking, body))

    async def embeddings(self, texts: Sequence[str], *, model: str | None = None) -> Embeddings:
        """Vectors of texts, by the service's embedder."""
        body = given({"input": list(texts), "model": model, "encoding_format": "base64"})
        return await self._send(
            Call("POST", "/v1/embeddings", read_embeddings, content={"json": body})
        )

    async def methods(self) -> Methods:
        """Fusion and eviction methods, their parameters, and the defaults."""
        return await self._send(get("/v1/methods", Methods))

    async def status(self) -> dict[str, Any]:
        """The state of the service: model, corpus, tiers, requests in flight."""
        return await self._send(Call("GET", "/status", dict))

    # -- documents in ----------------------------------------------------------------------------

    async def precompute(
        self, documents: Sequence[NewDocument], **options: Unpack[UploadOptions]
    ) -> Job:
        """Hand documents in, new ones or new revisions: they are on disk when this returns; `wait`
        waits for their KV."""
        collection = options.pop("collection", None)
        body = given({"documents": [dict(one) for one in documents], "collection": collection})
        return await self._send(submission({"json": body}, options))

    async def precompute_files(
        self,
        files: Iterable[File],
        *,
        metadata: Mapping[str, Any] | None = None,
        **options: Unpack[UploadOptions],
    ) -> Job:
        """Hand files in, Markdown, text, HTML or PDF: paths, or pairs of name and content. Their
        names become document ids; `metadata` are those of all of them."""
        read = await self._connection.transport.run_blocking(partial(read_files, files))
        fields = {} if metadata is None else {"metadata": json.dumps(dict(metadata))}
        content = {"data": fields, "files": [("file", file) for file in read]}
        return await self._send(submission(content, options))

    async def precompute_lines(
        self, lines: Iterable[bytes], **options: Unpack[UploadOptions]
    ) -> Job:
        """Hand documents in as lines of JSON (NDJSON) without line breaks, each as `precompute`
        takes one."""
        headers = {"Content-Type": "application/x-ndjson"}
        return await self._send(submission({"content": b"\n".join(lines)}, options, headers))

    async def ingest(
        self,
        documents: Sequence[NewDocument],
        *,
        on_progress: OnProgress | None = None,
        timeout_s: float | None = None,
        **options: Unpack[UploadOptions],
    ) -> Job:
        """`precompute`, then `wait`. Documents that failed are in the job's `errors`."""
        job = await self.precompute(documents, **options)
        return await self.wait(job, on_progress=on_progress, timeout_s=timeout_s)

    async def ingest_files(
        self,
        files: Iterable[File],
        *,
        metadata: Mapping[str, Any] | None = None,
        on_progress: OnProgress | None = None,
        timeout_s: float | None = None,
        **options: Unpack[UploadOptions],
    ) -> Job:
        """`precompute_files`, then `wait`. Files that failed are in the job's `errors`."""
        job = await self.precompute_files(files, metadata=metadata, **options)
        return await self.wait(job, on_progress=on_progress, timeout_s=timeout_s)

    # -- jobs ------------------------------------------------------------------------------------

    async def get_job(self, job_id: str, *, errors: int | None = None) -> Job:
        """Return a job with at most so many of its errors; None: the service's default."""
        path = path_of("/admin/jobs", job_id, "job_id")
        return await self._send(get(path, Job, {"errors": errors}))

    def list_jobs(
        self, *, state: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Job]:
        """Jobs, newest first, page by page; at most `limit`."""
        return self._items("/admin/jobs", "jobs", Job, {"state": state}, limit)

    async def cancel_job(self, job_id: str) -> Job:
        """Leave what is not done. Conflict: the job has ended."""
        return await self._send(delete(path_of("/admin/jobs", job_id, "job_id"), Job))

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
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s, seen = FIRST_POLL_S, None
        while True:
            found = await self.get_job(job if isinstance(job, str) else job.job_id)
            if on_progress is not None and found != seen:
                on_progress(found)
            if found.ended:
                return found
            if give_up_at is not None and time.monotonic() + pause_s > give_up_at:
                raise WaitedTooLong(
                    f"job {found.job_id} is {found.state} after {timeout_s:g} s, and goes on: "
                    f"{found.progress.done} of {found.progress.total} documents are done"
                )
            await self._connection.transport.sleep(pause_s)
            pause_s, seen = min(LONGEST_POLL_S, 1.5 * pause_s), found

    # -- stored documents ------------------------------------------------------------------------

    async def get_document(self, doc_id: str, *, collection: str | None = None) -> Document:
        """A document with its text."""
        path = path_of("/admin/documents", doc_id, "doc_id")
        return await self._send(get(path, Document, {"collection": collection}))

    async def get_text(self, doc_id: str, *, collection: str | None = None) -> DocumentText:
        """What is stored of a document: its text, its chunks, and what is not in it."""
        path = path_of("/admin/documents", doc_id, "doc_id") + "/text"
        return await self._send(get(path, DocumentText, {"collection": collection}))

    def list_documents(
        self, *, collection: str | None = None, limit: int | None = None
    ) -> AsyncIterator[Document]:
        """Documents by doc_id, page by page, without their texts; at most `limit`."""
        return self._items(
            "/admin/documents", "documents", Document, {"collection": collection}, limit
        )

    async def delete_document(self, doc_id: str, *, collection: str | None = None) -> Receipt:
        """Remove a document: text, vectors, and KV in every tier. NotFound: there is none."""
        path = path_of("/admin/documents", doc_id, "doc_id")
        return await self._send(delete(path, Receipt, {"collection": collection}))

    async def delete_documents(
        self,
        doc_ids: Sequence[str] | None = None,
        *,
        filter: Mapping[str, Any] | None = None,
        collection: str | None = None,
    ) -> Receipt:
        """Remove documents by id, or by what their metadata says; unknown ids are ignored."""
        ids = None if doc_ids is None else list(doc_ids)
        body = {"doc_ids": ids, "filter": filter, "collection": collection}
        return await self._send(post("/admin/deletions", Receipt, body, repeatable=False))

    async def source_documents(self, source: str) -> list[SourceDocument]:
        """Return the documents that were sent with this `source` last, in any collection."""
        path = path_of("/admin/sources", source, "source")
        return await self._send(
            Call("GET", path, lambda data: [read(SourceDocument, each) for each in data])
        )

    async def rename_document(
        self, doc_id: str, new_id: str, *, collection: str | None = None
    ) -> Document:
        """Give a document another id; its KV stays. Conflict: there is one that is called so."""
        body = {"doc_id": doc_id, "new_id": new_id, "collection": collection}
        return await self._send(post("/admin/renames", Document, body, repeatable=False))

    async def get_receipt(self, receipt_id: str) -> Receipt:
        """A deletion's receipt, and whether anything is still owed."""
        return await self._send(get(path_of("/admin/receipts", receipt_id, "receipt_id"), Receipt))

    async def pin_document(self, doc_id: str, *, collection: str | None = None) -> Document:
        """Keep a document's KV stored, until it is unpinned."""
        return await self._pin("PUT", doc_id, collection)

    async def unpin_document(self, doc_id: str, *, collection: str | None = None) -> Document:
        """Let a document's KV be evicted like any other."""
        return await self._pin("DELETE", doc_id, collection)

    async def collections(self) -> list[Collection]:
        """Return the collections that have documents."""
        return await self._send(Call("GET", "/admin/collections", read_collections))

    async def delete_collection(self, collection: str) -> Receipt:
        """Remove a collection's documents: texts, vectors, and KV in every tier."""
        path = path_of("/admin/collections", collection, "collection")
        return await self._send(delete(path, Receipt))

    # -- sending ---------------------------------------------------------------------------------

    async def _pin(self, method: str, doc_id: str, collection: str | None) -> Document:
        path = path_of("/admin/pins", doc_id, "doc_id")
        content = {"params": given({"collection": collection})}
        return await self._send(Call(method, path, partial(read, Document), False, content))

    async def _items(
        self, path: str, name: str, kind: type[T], query: Mapping[str, Any], limit: int | None
    ) -> AsyncIterator[T]:
        """Yield the items of a list that comes in pages, at most `limit`; None: all."""
        cursor = None
        while limit != 0:
            most = PAGE_ITEMS if limit is None else min(PAGE_ITEMS, limit)
            call = page(path, name, kind, {**query, "cursor": cursor, "limit": most})
            found, cursor = await self._send(call)
            for item in found:
                yield item
            if cursor is None:
                return
            limit = None if limit is None else limit - len(found)
