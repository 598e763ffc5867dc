"""The client for blocking code: AsyncClient's methods over a transport that blocks."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from kvstitch.client.async_client import AsyncClient
from kvstitch.client.connection import AsyncAnswerStream, BlockingTransport, finish
from kvstitch.client.events import Event
from kvstitch.client.options import GenerateOptions
from kvstitch.records.answers import Answer

P = ParamSpec("P")
T = TypeVar("T")


def _items(items: AsyncIterator[T]) -> Iterator[T]:
    """Yield what a list or a stream of AsyncClient gives; left early, it is closed."""
    try:
        while True:
            try:
                yield finish(anext(items))
            except StopAsyncIteration:
                return
    finally:
        finish(items.aclose())  # type: ignore[attr-defined]


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Client", P], T]:
    """Return a method of AsyncClient as Client has it."""

    @wraps(method)
    def call(client: "Client", /, *args: P.args, **more: P.kwargs) -> T:
        return finish(method(client._client, *args, **more))

    return call


def _listing(
    method: Callable[Concatenate[AsyncClient, P], AsyncIterator[T]],
) -> Callable[Concatenate["Client", P], Iterator[T]]:
    """Return a method that lists, as Client has it."""

    @wraps(method)
    def call(client: "Client", /, *args: P.args, **more: P.kwargs) -> Iterator[T]:
        return _items(method(client._client, *args, **more))

    return call


class AnswerStream:
    """A streamed answer: iterate it once, then `result` is the whole answer.

    Leaving it early, by `close` or the end of a `with`, ends the answer in the service.
    """

    def __init__(self, stream: AsyncAnswerStream) -> None:
        self._stream = stream

    @property
    def result(self) -> Answer:
        """The whole answer once the last event has come, before it UnexpectedResponse."""
        return self._stream.result

    def __iter__(self) -> Iterator[Event]:
        return _items(aiter(self._stream))

    def close(self) -> None:
        """Leave the stream; the service then ends the answer."""
        finish(self._stream.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Client:
    """A service, for blocking code. Any number of threads may use it.
    Close it, or use it in a `with`.

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
        """Nothing is sent yet. Arguments and errors are those of AsyncClient."""
        self._client = _BlockingCalls(
            base_url,
            api_key=api_key,
            timeout_s=timeout_s,
            max_retries=max_retries,
            max_wait_s=max_wait_s,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def stream(
        self, question: str | None = None, **options: Unpack[GenerateOptions]
    ) -> AnswerStream:
        """An answer as events while it is generated."""
        return AnswerStream(finish(self._client.stream(question, **options)))

    close = _blocking(AsyncClient.close)
    generate = _blocking(AsyncClient.generate)
    explain = _blocking(AsyncClient.explain)
    search = _blocking(AsyncClient.search)
    rerank = _blocking(AsyncClient.rerank)
    embeddings = _blocking(AsyncClient.embeddings)
    methods = _blocking(AsyncClient.methods)
    status = _blocking(AsyncClient.status)
    precompute = _blocking(AsyncClient.precompute)
    precompute_files = _blocking(AsyncClient.precompute_files)
    precompute_lines = _blocking(AsyncClient.precompute_lines)
    ingest = _blocking(AsyncClient.ingest)
    ingest_files = _blocking(AsyncClient.ingest_files)
    get_job = _blocking(AsyncClient.get_job)
    list_jobs = _listing(AsyncClient.list_jobs)
    cancel_job = _blocking(AsyncClient.cancel_job)
    wait = _blocking(AsyncClient.wait)
    get_document = _blocking(AsyncClient.get_document)
    get_text = _blocking(AsyncClient.get_text)
    list_documents = _listing(AsyncClient.list_documents)
    delete_document = _blocking(AsyncClient.delete_document)
    delete_documents = _blocking(AsyncClient.delete_documents)
    source_documents = _blocking(AsyncClient.source_documents)
    rename_document = _blocking(AsyncClient.rename_document)
    get_receipt = _blocking(AsyncClient.get_receipt)
    pin_document = _blocking(AsyncClient.pin_document)
    unpin_document = _blocking(AsyncClient.unpin_document)
    collections = _blocking(AsyncClient.collections)
    delete_collection = _blocking(AsyncClient.delete_collection)


class _BlockingCalls(AsyncClient):
    _transport_kind = BlockingTransport
