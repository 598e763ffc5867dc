"""POST /v1/search: what an answer would be given, without the answer. The worker is not asked."""

from __future__ import annotations

from service.errors import InvalidRequest
from service.gateway.admission import CallContext, ConcurrencyLimiter, before_deadline
from service.gateway.schemas.answer import FoundPassage
from service.gateway.schemas.search import SearchRequest, SearchResponse, SearchResult
from service.gateway.search.async_retriever import AsyncRetriever
from service.gateway.search.passage_search import (
    FoundPassages,
    PassageSearch,
    SearchQuery,
    citations,
    ranked_by,
)
from service.settings import Settings


class SearchService:
    """Answers searches. Stateless."""

    def __init__(
        self,
        retriever: AsyncRetriever,
        limiter: ConcurrencyLimiter,
        settings: Settings,
        *,
        top_k: int,
    ) -> None:
        """`top_k`: passages, where a request does not say."""
        self._retriever = retriever
        self._passages = PassageSearch(retriever, settings)
        self._limiter = limiter
        self._settings = settings
        self._top_k = top_k

    async def search(self, request: SearchRequest, call: CallContext) -> SearchResponse:
        """Find passages.

        Raises:
            InvalidRequest: A field is wrong; the error names it.
            NotFound: A named document is not stored.
            Overloaded, QuotaExceeded: Too many requests are in flight.
            WorkerUnavailable: The index is being loaded.
            DeadlineExceeded: The deadline passed meanwhile.
        """
        _check_text(request.query, self._settings.max_question_chars)
        query = self._passages.query(
            request, request.query, tenant=call.principal.tenant, top_k=max(1, self._top_k)
        )
        self._retriever.require()
        slot = self._limiter.acquire(0, call.principal.key_id)
        try:
            return await before_deadline(self._run(request, query), call)
        finally:
            slot.close()

    async def _run(self, request: SearchRequest, query: SearchQuery) -> SearchResponse:
        """One visit to a search thread, as in an answer; a reranker makes it two."""
        if not query.rerank:
            return await self._retriever.run(
                lambda: self._response(request, query, self._passages.find(query))
            )
        found = await self._retriever.run(self._passages.find, query)
        reranked = await self._passages.rerank(query, found)
        return await self._retriever.run(self._response, request, query, reranked)

    def _response(
        self, request: SearchRequest, query: SearchQuery, found: FoundPassages
    ) -> SearchResponse:
        warnings = list(found.warnings)
        if not found.passages:
            warnings.append(self._passages.why_nothing(request, query, found))
        stages = {"embed": found.embed_s, "retrieve": found.retrieve_s}
        if query.rerank:
            stages["rerank"] = found.rerank_s
        return SearchResponse(
            collection=query.scope.collection,
            retrieval=query.mode,
            ranked_by=ranked_by(query, found),
            results=self._results(request, query, found),
            stages=stages,
            warnings=warnings,
        )

    def _results(
        self, request: SearchRequest, query: SearchQuery, found: FoundPassages
    ) -> list[SearchResult]:
        infos = self._passages.documents_of(found.passages, query.scope)
        results = []
        for cited in citations(found.passages, with_text=request.include_text):
            # A document that was deleted a moment ago has none.
            info = infos.get(cited.doc_id)
            metadata = {} if info is None else dict(info.metadata)
            fields = cited.model_dump(include=set(FoundPassage.model_fields))
            results.append(SearchResult(**fields, metadata=metadata))
        return results


def _check_text(text: str, limit: int) -> None:
    if not text.strip():
        raise InvalidRequest("query is empty: send what to search for", field="query")
    if len(text) > limit:
        raise InvalidRequest(
            f"query has {len(text)} characters, the limit is {limit}: shorten it", field="query"
        )
