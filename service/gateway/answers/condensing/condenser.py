"""Decides what is searched for a question, and searches for it.

off     the question as it is
join    the question, and beside it the question joined with the user's earlier ones, if that helps
model   what the served model makes of question and conversation; join, if that fails
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from service.gateway.answers.condensing.join import adds_something, fuse, joined_query
from service.gateway.answers.condensing.rewriting import QuestionRewriter
from service.gateway.answers.validating.validation import ValidatedRequest
from service.gateway.retrieval.async_retriever import RetrievalResult, SearchQuery
from service.gateway.retrieval.passage_search import PassageSearch
from service.gateway.schemas.answer import Condense

# Rankings are fused this deep, so that what stands low in both can rise.
FUSED_FACTOR = 4
FUSED_MIN_PASSAGES = 20


@dataclass(frozen=True)
class Condensed:
    """What is searched.

    Attributes:
        search: The search; its text is the question, or what the model made of it.
        joined: What is searched beside it; None: nothing.
        how: What was done in the end.
        seconds: That the model took.
        tokens: That it read and wrote.
        warnings: For the client.
    """

    search: SearchQuery
    joined: str | None = None
    how: Condense = "off"
    seconds: float = 0.0
    tokens: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def reranked(self) -> SearchQuery:
        """The search whose text a reranker compares passages with: one that stands alone."""
        return self.search if self.joined is None else replace(self.search, text=self.joined)


class QueryCondenser:
    """Stateless."""

    def __init__(self, passages: PassageSearch, rewriter: QuestionRewriter | None) -> None:
        """`rewriter`: None: the model is not asked."""
        self._passages = passages
        self._rewriter = rewriter

    async def condense(self, validated: ValidatedRequest, search: SearchQuery) -> Condensed:
        """What to search; asks the model if the request wants that."""
        joined = joined_query(validated.turns)
        if joined is None or validated.condense == "off":
            return Condensed(search)
        if validated.condense == "join" or self._rewriter is None:
            return Condensed(search, joined, "join")
        started = time.perf_counter()
        made = await self._rewriter.rewrite(validated.turns, tenant=search.scope.tenant)
        seconds = time.perf_counter() - started
        if made.text is None:
            warning = "the model did not rewrite the question: it was joined with earlier ones"
            return Condensed(search, joined, "join", seconds, made.tokens, (warning,))
        return Condensed(replace(search, text=made.text), None, "model", seconds, made.tokens)

    def find(self, condensed: Condensed) -> tuple[RetrievalResult, Condensed]:
        """The passages, and what was searched in the end. Blocks: call it within `run_blocking`.

        Raises:
            NotFound: A named document is not stored.
            InvalidRequest: A reranker is asked for and the service has none.
        """
        search, warnings = condensed.search, condensed.warnings
        if condensed.joined is None:
            found = self._passages.find(search)
            return replace(found, warnings=(*found.warnings, *warnings)), condensed
        deep = replace(search, top_k=max(FUSED_FACTOR * search.top_k, FUSED_MIN_PASSAGES))
        own = self._passages.find(deep)
        joined = self._passages.find(replace(deep, text=condensed.joined))
        passages = own.passages
        if adds_something(own.passages, joined.passages):
            passages = fuse(own.passages, joined.passages)
        else:
            condensed = replace(condensed, joined=None)
        # A reranker gets as many candidates as one search gives it.
        most = len(own.passages) if search.rerank else search.top_k
        result = replace(
            own,
            passages=passages[:most],
            embed_s=own.embed_s + joined.embed_s,
            retrieve_s=own.retrieve_s + joined.retrieve_s,
            warnings=(*own.warnings, *warnings),
        )
        return result, condensed
