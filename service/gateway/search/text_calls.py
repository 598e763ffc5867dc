"""POST /v1/embeddings and POST /v1/rerank: the service's models, for texts that clients bring."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstitch.records.answers import RerankedText, Reranking, RerankResult, RerankUsage
from kvstitch.retriever import Embedder
from kvstitch.retriever.embedders import CountedVectors, space_of
from kvstitch.retriever.errors import RerankerError, RetrieverError
from kvstitch.service.errors import (
    InvalidRequest,
    ModelNotFound,
    NoReranker,
    Overloaded,
    RerankerFailed,
    Unsupported,
)
from kvstitch.service.gateway.admission import CallContext, ConcurrencyLimiter, before_deadline
from kvstitch.service.gateway.prompts.tokenizer import ServingTokenizer
from kvstitch.service.gateway.schemas.search import EmbeddingsRequest, RerankRequest
from kvstitch.service.gateway.search.async_retriever import AsyncRetriever
from kvstitch.service.gateway.search.search_query import service_error
from kvstitch.service.settings import Settings
from kvstitch.service.shared.tracing import Tracing, attributes_of, failure, span_name

# One call may keep the embedder busy for a minute: more of them would only wait, and take the
# places of answers meanwhile.
MAX_CALLS = 16


class CallLimit:
    """Takes a place among all requests in flight, as long as few are of this kind."""

    def __init__(self, limiter: ConcurrencyLimiter, what: str) -> None:
        """`what`: the kind of calls, for messages."""
        self._limiter = limiter
        self._what = what
        self._calls = 0

    @contextmanager
    def place(self, key_id: str) -> Iterator[None]:
        if self._calls >= MAX_CALLS:
            raise Overloaded(
                f"{self._calls} calls of {self._what} are under way, which is the limit: try again "
                "later",
                retry_after_s=self._limiter.retry_after_s,
            )
        slot = self._limiter.acquire(0, key_id)
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            slot.close()


def check_texts(texts: Sequence[str], field: str, settings: Settings) -> None:
    """Raise InvalidRequest if there are too many texts, or one is empty, or all are too long."""
    if len(texts) > settings.max_texts:
        raise InvalidRequest(
            f"{field} has {len(texts)} texts, the limit is {settings.max_texts}: send them in "
            "several calls",
            field=field,
        )
    chars = sum(map(len, texts))
    if chars > settings.max_texts_chars:
        raise InvalidRequest(
            f"{field} has {chars} characters, the limit is {settings.max_texts_chars}: send it in "
            "several calls",
            field=field,
        )
    for number, text in enumerate(texts):
        if not text:
            where = f"{field}[{number}]"
            raise InvalidRequest(f"{where} is empty: send a text, or leave it out", field=where)


# Texts embedded in one go. Between batches other calls get their turn, and a call is given up
# whose client has disconnected.
BATCH_TEXTS = 32


class EmbeddingService:
    """Embeds texts, on a thread of its own, which delays neither searches nor documents."""

    def __init__(
        self,
        retriever: AsyncRetriever,
        limiter: ConcurrencyLimiter,
        settings: Callable[[], Settings],
        tracing: Tracing,
    ) -> None:
        self._tracing = tracing
        self._retriever = retriever
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embed-texts")
        self._limit = CallLimit(limiter, "/v1/embeddings")
        self._settings = settings

    def close(self) -> None:
        """Drop what waits; what is being computed ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def embed(self, request: EmbeddingsRequest, call: CallContext) -> bytes:
        """Embed all inputs; return the body of the response, an EmbeddingsResponse as JSON."""
        texts = _texts(request)
        check_texts(texts, "input", self._settings())
        self._retriever.require()
        embedder = self._retriever.retriever.embedder
        space = space_of(embedder)
        if request.model not in (None, space.name):
            raise ModelNotFound(
                f"the embedder here is {space.name!r}, not {request.model!r}", field="model"
            )
        if request.dimensions not in (None, space.dim):
            raise Unsupported(
                f"dimensions: the vectors of {space.name} have {space.dim}, and cannot be "
                "shortened: leave it out",
                field="dimensions",
            )
        name = span_name("embeddings", space.name)
        span = self._tracing.begin(name, call.traceparent, ago_s=call.ago_s, served=True)
        told = attributes_of("embeddings", space.name, embeddings__dimension__count=space.dim)
        try:
            with self._limit.place(call.principal.key_id):
                vectors, tokens = await before_deadline(self._vectors(embedder, texts), call)
        except BaseException as error:
            span.end(attributes=told, error=failure(error))
            raise
        span.end(attributes={**told, "gen_ai.usage.input_tokens": tokens})
        call.principal.spend_tokens(tokens)
        return await asyncio.to_thread(
            _body, vectors, tokens, space.name, as_base64=request.encoding_format == "base64"
        )

    async def _vectors(self, embedder: Embedder, texts: list[str]) -> CountedVectors:
        """`[len(texts), dim]`, and how many tokens the texts have."""
        parts, tokens = [], 0
        loop = asyncio.get_running_loop()
        for start in range(0, len(texts), BATCH_TEXTS):
            batch = texts[start : start + BATCH_TEXTS]
            try:
                vectors, read = await loop.run_in_executor(self._thread, embedder.embed, batch)
            except RetrieverError as error:
                raise service_error(error) from error
            parts.append(vectors)
            tokens += read
        return np.concatenate(parts), tokens


def _texts(request: EmbeddingsRequest) -> list[str]:
    given = [request.input] if isinstance(request.input, str) else request.input
    texts = [one for one in given if isinstance(one, str)]
    if len(texts) < len(given):
        raise Unsupported(
            "input must be text: token ids are those of a tokenizer that is not the embedder's "
            "(LangChain's OpenAIEmbeddings sends text with check_embedding_ctx_length=False)",
            field="input",
        )
    if not texts:
        raise InvalidRequest("input is empty: send a text, or a list of texts", field="input")
    return texts


def _body(vectors: npt.NDArray[np.float32], tokens: int, model: str, *, as_base64: bool) -> bytes:
    """Write the response here: as models of pydantic a million numbers would take seconds."""
    rows: list[Any]
    if as_base64:
        rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
    else:
        rows = vectors.tolist()
    data = [
        {"object": "embedding", "index": index, "embedding": row} for index, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json.dumps({"object": "list", "data": data, "model": model, "usage": usage}).encode()


class RerankService:
    """Reranks texts."""

    def __init__(
        self,
        retriever: AsyncRetriever,
        limiter: ConcurrencyLimiter,
        settings: Callable[[], Settings],
        tokenizer: ServingTokenizer,
    ) -> None:
        """`tokenizer`: counts what a call takes of a quota."""
        self._retriever = retriever
        self._limit = CallLimit(limiter, "/v1/rerank")
        self._settings = settings
        self._tokenizer = tokenizer

    async def rerank(self, request: RerankRequest, call: CallContext) -> Reranking:
        """Score all documents, and sort them."""
        texts = request.texts
        if not request.query.strip():
            raise InvalidRequest("query is empty: send what to rank for", field="query")
        check_texts([request.query], "query", self._settings())
        check_texts(texts, "documents", self._settings())
        name = self._settings().reranker_model
        if name and request.model not in (None, name):
            raise ModelNotFound(
                f"the reranker here is {name!r}, not {request.model!r}", field="model"
            )
        self._retriever.require()
        with self._limit.place(call.principal.key_id):
            scores = await before_deadline(self._scores(request.query, texts), call)
        if not all(map(math.isfinite, scores)):
            raise RerankerFailed("the reranker's scores are not all finite")
        tokens = await asyncio.to_thread(self._count, [request.query, *texts])
        call.principal.spend_tokens(tokens)
        best_first = sorted(range(len(texts)), key=lambda index: -scores[index])  # stable
        return Reranking(
            id=f"rerank-{uuid.uuid4().hex}",
            model=name or request.model or "reranker",
            results=[
                RerankResult(
                    index=index,
                    relevance_score=scores[index],
                    document=RerankedText(text=texts[index]) if request.return_documents else None,
                )
                for index in best_first[: request.top_n]
            ],
            usage=RerankUsage(total_tokens=tokens),
        )

    async def _scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return the score of every text; higher is better."""
        if self._retriever.reranker is None:
            raise NoReranker("this service has no reranker: set KVSTITCH_RERANKER_URL")
        timeout_s = self._settings().rerank_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._retriever.reranker.scores(query, texts)
        except TimeoutError:
            raise RerankerFailed(f"the reranker did not answer within {timeout_s:g} s") from None
        except RerankerError as error:
            raise RerankerFailed(f"the reranker failed: {error}") from error

    def _count(self, texts: Sequence[str]) -> int:
        return sum(len(self._tokenizer.encode_text(text)) for text in texts)
