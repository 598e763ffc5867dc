"""POST /v1/search: what an answer would be given, without the answer. The worker is not asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial

from kvstitch.records.answers import FoundPassage, SearchResult, SearchResults
from kvstitch.service.errors import InvalidRequest
from kvstitch.service.gateway.admission import CallContext, ConcurrencyLimiter, before_deadline
from kvstitch.service.gateway.schemas.search import SearchRequest
from kvstitch.service.gateway.search.async_retriever import AsyncRetriever
from kvstitch.service.gateway.search.passage_search import FoundPassages, PassageSearch, citations
from kvstitch.service.gateway.search.search_query import search_query
from kvstitch.service.settings import Settings
from kvstitch.service.shared.tracing import Tracing, attributes_of, failure


@dataclass(frozen=True)
class SearchService:
    """Answers searches. Stateless."""

    retriever: AsyncRetriever
    passages: PassageSearch
    limiter: ConcurrencyLimiter
    settings: Callable[[], Settings]
    tracing: Tracing
    top_k: int  # passages, where a request does not say

    async def search(self, request: SearchRequest, call: CallContext) -> SearchResults:
        """Find passages. Raises KvstitchError."""
        span = self.tracing.begin("retrieval", call.traceparent, ago_s=call.ago_s, served=True)
        told = attributes_of("retrieval", request__top_k=request.top_k)
        try:
            found = await self._found(request, call)
        except BaseException as error:
            span.end(attributes=told, error=failure(error))
            raise
        span.end(found.stages, {**told, "kvstitch.passages": len(found.results)})
        return found

    async def _found(self, request: SearchRequest, call: CallContext) -> SearchResults:
        limit = self.settings().max_question_chars
        if not request.query.strip():
            raise InvalidRequest("query is empty: send what to search for", field="query")
        if (length := len(request.query)) > limit:
            raise InvalidRequest(
                f"query has {length} characters, the limit is {limit}: shorten it", field="query"
            )
        query = search_query(
            request,
            request.query,
            principal=call.principal,
            top_k=max(1, self.top_k),
            settings=self.settings(),
        )
        self.retriever.require()
        slot = self.limiter.acquire(0, call.principal.key_id)
        try:
            searching = self.passages.search(
                partial(self.passages.find, query),
                partial(self._response, request),
                rerank=query.rerank,
            )
            return await before_deadline(searching, call)
        finally:
            slot.close()

    def _response(self, request: SearchRequest, found: FoundPassages) -> SearchResults:
        query = found.query
        assert query is not None
        warnings = list(found.warnings)
        if not found.passages or not found.is_about_the_question:
            warnings.append(self.passages.why_nothing(request, found))
        stages = {"embed": found.embed_s, "retrieve": found.retrieve_s}
        if query.rerank:
            stages["rerank"] = found.rerank_s
        metadata = self.passages.metadata_of(found.passages, query.scope)
        results = []
        for cited in citations(found.passages, with_text=request.include_text):
            shared = {field.name: getattr(cited, field.name) for field in fields(FoundPassage)}
            # A document that was deleted a moment ago has none.
            results.append(SearchResult(**shared, metadata=metadata.get(cited.doc_id, {})))
        return SearchResults(
            collection=query.scope.collection,
            retrieval=query.mode,
            ranked_by=found.ranked_by,
            results=results,
            found=bool(results) and found.is_about_the_question,
            relevance=None if found.relevance is None else round(found.relevance, 4),
            stages=stages,
            warnings=warnings,
        )
