"""POST /v1/rerank: the service's reranker, for texts that a client brings."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Sequence

from retriever.errors import RerankerError
from service.errors import InvalidRequest, ModelNotFound, NoReranker, RerankerFailed
from service.gateway.admission import CallContext, ConcurrencyLimiter, before_deadline
from service.gateway.prompts.tokenizer import ServingTokenizer
from service.gateway.schemas.search import (
    RerankedText,
    RerankRequest,
    RerankResponse,
    RerankResult,
    RerankUsage,
)
from service.gateway.search.async_retriever import AsyncRetriever
from service.gateway.search.text_calls import CallLimit, check_texts
from service.settings import Settings


class RerankService:
    """Reranks texts."""

    def __init__(
        self,
        retriever: AsyncRetriever,
        limiter: ConcurrencyLimiter,
        settings: Settings,
        tokenizer: ServingTokenizer,
    ) -> None:
        """`tokenizer`: counts what a call takes of a quota."""
        self._retriever = retriever
        self._limit = CallLimit(limiter, "/v1/rerank")
        self._settings = settings
        self._tokenizer = tokenizer

    async def rerank(self, request: RerankRequest, call: CallContext) -> RerankResponse:
        """Score all documents, and sort them.

        Raises:
            InvalidRequest: A field is wrong; the error names it.
            ModelNotFound: The reranker has another name.
            NoReranker: The service has none; the message says what to set.
            RerankerFailed: It failed or is late.
            Overloaded, QuotaExceeded: Too many requests are in flight.
            WorkerUnavailable: The service is starting.
            DeadlineExceeded: The deadline passed meanwhile.
        """
        texts = request.texts
        if not request.query.strip():
            raise InvalidRequest("query is empty: send what to rank for", field="query")
        check_texts([request.query], "query", self._settings)
        check_texts(texts, "documents", self._settings)
        name = self._settings.reranker_model
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
        return RerankResponse(
            id=f"rerank-{uuid.uuid4().hex}",
            model=name or request.model or "reranker",
            results=_results(request, texts, scores),
            usage=RerankUsage(total_tokens=tokens),
        )

    async def _scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """The score of every text; higher is better."""
        if self._retriever.reranker is None:
            raise NoReranker("this service has no reranker: set KVSTITCH_RERANKER_URL")
        timeout_s = self._settings.rerank_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._retriever.reranker.scores(query, texts)
        except TimeoutError:
            raise RerankerFailed(f"the reranker did not answer within {timeout_s:g} s") from None
        except RerankerError as error:
            raise RerankerFailed(f"the reranker failed: {error}") from error

    def _count(self, texts: Sequence[str]) -> int:
        return sum(len(self._tokenizer.encode_text(text)) for text in texts)


def _results(
    request: RerankRequest, texts: Sequence[str], scores: Sequence[float]
) -> list[RerankResult]:
    """The best first; equal scores keep their order."""
    order = sorted(range(len(texts)), key=lambda index: -scores[index])
    return [
        RerankResult(
            index=index,
            relevance_score=scores[index],
            document=RerankedText(text=texts[index]) if request.return_documents else None,
        )
        for index in order[: request.top_n]
    ]
