"""What a request's choice of passages means and finds: one way for answers and searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from retriever import Scope, SearchMode
from retriever.index.rank_fusion import MAX_FUSED_SCORE
from service.errors import InvalidRequest, NotFound
from service.gateway.retrieval.async_retriever import (
    AsyncRetriever,
    RetrievalResult,
    SearchQuery,
)
from service.gateway.retrieval.document_scope import document_scope, metadata_filter
from service.gateway.schemas.generate import SearchChoices
from service.gateway.schemas.search import RankedBy
from service.settings import Settings

_RANKED_BY: Final[dict[str, RankedBy]] = {
    "dense": "cosine",
    "sparse": "bm25",
    "hybrid": "reciprocal_ranks",
}
_MEANINGS: Final = {"dense": "cosines", "hybrid": "sums of reciprocal ranks"}
_HIGHEST_SCORES: Final = {"dense": 1.0, "hybrid": MAX_FUSED_SCORE}  # BM25 has none


class PassageSearch:
    """Checks choices and searches. Stateless."""

    def __init__(self, retriever: AsyncRetriever, settings: Settings) -> None:
        self._retriever = retriever
        self._settings = settings

    def query(self, choices: SearchChoices, text: str, *, tenant: str, top_k: int) -> SearchQuery:
        """Make every check that takes no time.

        Args:
            choices: Of the request.
            text: What is searched for.
            tenant: Whose documents.
            top_k: Passages, where the request does not say.

        Raises:
            InvalidRequest: A field is wrong; the error names it.
        """
        limit = self._settings.max_top_k
        wanted = top_k if choices.top_k is None else choices.top_k
        if wanted > limit:
            raise InvalidRequest(f"top_k must be at most {limit}, not {wanted}", field="top_k")
        if choices.documents is not None and not choices.documents:
            raise InvalidRequest(
                "documents is empty: name documents, or leave it out to search all of them",
                field="documents",
            )
        mode = choices.retrieval or self._settings.retrieval
        if not choices.rerank:
            _check_floor(choices.min_score, mode)
        return SearchQuery(
            text=text,
            top_k=wanted,
            scope=document_scope(tenant, choices.collection),
            doc_ids=None if choices.documents is None else tuple(choices.documents),
            where=metadata_filter(choices.filter),
            mode=mode,
            rerank=choices.rerank,
            min_score=choices.min_score,
        )

    def find(self, query: SearchQuery) -> RetrievalResult:
        """As `AsyncRetriever.find`, and named documents must be stored. Blocks.

        Raises:
            NotFound: A named document is not stored.
            InvalidRequest: A reranker is asked for and the service has none.
        """
        if query.doc_ids is not None:
            self.require_documents(query.doc_ids, query.scope)
        return self._retriever.find(query)

    def require_documents(self, doc_ids: Sequence[str], scope: Scope) -> None:
        """Raise NotFound if one of `doc_ids` is not stored. Blocks."""
        unknown = self._retriever.unknown_documents(doc_ids, scope)
        if unknown:
            raise NotFound(
                f"documents: there is no document {unknown[0]!r}; GET /admin/documents lists "
                "what there is",
                field="documents",
            )

    def why_nothing(
        self, choices: SearchChoices, query: SearchQuery, found: RetrievalResult
    ) -> str:
        """Why a search has no passages. Blocks: call it within `run_blocking`."""
        if found.below_floor:
            return (
                f"nothing was found above min_score {query.min_score:g}: the best of "
                f"{len(found.below_floor)} passages has {found.below_floor[0]:.4g} "
                f"({ranked_by(query, found)})"
            )
        if self._retriever.has_documents(query.scope):
            return "no passage was found"
        if choices.collection is None:
            return "there are no documents"
        return (
            f"there is no collection {query.scope.collection!r} (GET /admin/collections lists "
            "those that have documents)"
        )


def _check_floor(floor: float | None, mode: SearchMode) -> None:
    """Raise InvalidRequest if no passage can have such a score."""
    highest = _HIGHEST_SCORES.get(mode)
    if floor is None or highest is None or floor <= highest:
        return
    remedy = "lower it"
    if mode == "hybrid":
        remedy += ", or choose retrieval dense, whose scores are cosines"
    raise InvalidRequest(
        f"min_score must be at most {highest:.4g} with retrieval {mode}, whose scores are "
        f"{_MEANINGS[mode]}, not {floor:g}: {remedy}",
        field="min_score",
    )


def ranked_by(query: SearchQuery, found: RetrievalResult) -> RankedBy:
    """What `score` is: that of the reranker, where it was asked and did answer."""
    if query.rerank and all(passage.rerank_score is not None for passage in found.passages):
        return "reranker"
    return _RANKED_BY[query.mode]
