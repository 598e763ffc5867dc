"""Searches for passages: what is found, and how it is cited.

Every change of threads costs a quarter of a millisecond, so one visit to a search thread finds
passages and does whatever is to be done with them. Only a reranker, which is a coroutine, makes two
of it.

"What is its height?" finds little by itself, and together with the question before it finds mostly
what that one found. So both are searched, and their rankings fused by reciprocal ranks: what either
puts first is among the first. But not if the question's own best passage is as near to it as the
joined question's is: then it says by itself what it is about, and perhaps the conversation has come
to something else. (docs/retrieval.md#what-a-citation-says has the figures.)
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from kvstitch.records.answers import Citation, RankedBy
from kvstitch.retriever import DocFilter, Passage, Scope, rerank
from kvstitch.retriever.filters import MATCH_ALL, as_elements
from kvstitch.retriever.relevance import FLOOR
from kvstitch.service.errors import InvalidRequest, NotFound
from kvstitch.service.gateway.schemas.generate import SearchChoices
from kvstitch.service.gateway.search.async_retriever import AsyncRetriever
from kvstitch.service.gateway.search.search_query import SearchQuery
from kvstitch.service.settings import Settings

T = TypeVar("T")
# A reranker gets this many candidates per wanted passage, and at least so many.
RERANK_FACTOR = 4
RERANK_MIN_CANDIDATES = 20
# Rankings of two searches are fused this deep, so that what stands low in both can rise.
K = 60  # ranks count as 1 / (K + rank)
FUSED_FACTOR = 4
FUSED_MIN_PASSAGES = 20

_RANKED_BY: Final[dict[str, RankedBy]] = {
    "dense": "cosine",
    "sparse": "bm25",
    "hybrid": "meaning_and_words",
}
_NO_URLS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True)
class FoundPassages:
    """What a search found, best first, and how long its steps took."""

    query: SearchQuery | None
    passages: list[Passage]
    embed_s: float = 0.0
    retrieve_s: float = 0.0
    rerank_s: float = 0.0
    warnings: tuple[str, ...] = ()
    below_floor: tuple[float, ...] = ()
    relevance: float | None = None  # None: not judged

    @property
    def is_about_the_question(self) -> bool:
        return self.relevance is None or self.relevance >= FLOOR

    @property
    def ranked_by(self) -> RankedBy:
        """What `score` is: that of the reranker, where it was asked and did answer."""
        assert self.query is not None
        if self.query.rerank and all(p.rerank_score is not None for p in self.passages):
            return "reranker"
        return _RANKED_BY[self.query.mode]

    def above_floor(self) -> FoundPassages:
        """Return the same without the passages that score below the query's `min_score`."""
        if self.query is None or (floor := self.query.min_score) is None:
            return self
        kept = [passage for passage in self.passages if passage.score >= floor]
        below = tuple(passage.score for passage in self.passages if passage.score < floor)
        return replace(self, passages=kept, below_floor=below)


class PassageSearch:
    """Searches for answers and for POST /v1/search alike. Stateless."""

    def __init__(self, retriever: AsyncRetriever, settings: Callable[[], Settings]) -> None:
        self._retriever = retriever
        self._settings = settings

    async def search(
        self,
        find: Callable[[], FoundPassages],
        finish: Callable[[FoundPassages], T],
        *,
        rerank: bool,
    ) -> T:
        """Find passages and finish with them, both on a search thread; a reranker, if it is asked,
        chooses among them in between."""
        if not rerank:
            return await self._retriever.run(lambda: finish(self._with_neighbours(find())))
        found = await self._rerank(await self._retriever.run(find))
        return await self._retriever.run(lambda: finish(self._with_neighbours(found)))

    def find(self, query: SearchQuery) -> FoundPassages:
        """Find the best passages for a query, joined with earlier questions or not; more
        candidates, of any score, if they are to be reranked. Blocks. Raises NotFound,
        InvalidRequest."""
        if query.doc_ids is not None:
            self.require_documents(query.doc_ids, query.scope)
        if query.rerank and self._retriever.reranker is None:
            raise InvalidRequest(
                "rerank: this service has no reranker; leave it out, or set KVSTITCH_RERANKER_URL",
                field="rerank",
            )
        top_k = query.top_k
        if query.joined is not None:
            top_k = max(FUSED_FACTOR * top_k, FUSED_MIN_PASSAGES)
        if query.rerank:
            top_k = max(RERANK_FACTOR * top_k, RERANK_MIN_CANDIDATES)
        doc_filter = None
        if query.doc_ids is not None or query.where != MATCH_ALL:
            doc_filter = DocFilter(query.doc_ids, query.where)
        retriever, searched = self._retriever.retriever, list[FoundPassages]()
        for text in (query.text, query.joined):
            if text is None:
                continue
            started = time.perf_counter()
            vector = None if query.mode == "sparse" else retriever.embed_query(text)
            embedded = time.perf_counter()
            passages = retriever.search(
                text, top_k, doc_filter, scope=query.scope, mode=query.mode, vector=vector
            )
            seconds = embedded - started, time.perf_counter() - embedded
            found = FoundPassages(query, passages, *seconds)
            searched.append(found if query.rerank else found.above_floor())
        own, joined = searched[0], searched[-1]
        if query.joined is None:
            return self._judged(own)
        adds = adds_something(own.passages, joined.passages)
        passages = fuse(own.passages, joined.passages) if adds else own.passages
        # A reranker gets as many candidates as one search gives it.
        most = len(own.passages) if query.rerank else query.top_k
        found = replace(
            own,
            query=query if adds else replace(query, joined=None),
            passages=passages[:most],
            embed_s=own.embed_s + joined.embed_s,
            retrieve_s=own.retrieve_s + joined.retrieve_s,
        )
        return self._judged(found)

    def _with_neighbours(self, found: FoundPassages) -> FoundPassages:
        """Add the pieces before and behind each passage, with its score, in their document's order.
        Blocks."""
        query = found.query
        if query is None or not query.neighbours:
            return found
        steps = range(-query.neighbours, query.neighbours + 1)
        wanted = {p.position: [(p.position[0], p.position[1] + step) for step in steps]
                  for p in found.passages}  # fmt: skip
        ordinals: defaultdict[str, set[int]] = defaultdict(set)
        for doc_id, ordinal in (place for places in wanted.values() for place in places):
            ordinals[doc_id].add(ordinal)
        catalog = self._retriever.catalog
        chunks = {
            (chunk.doc_id, chunk.ordinal): chunk
            for doc_id, numbers in ordinals.items()
            for chunk in catalog.chunks_of(doc_id, numbers, scope=query.scope)
        }
        hits = {passage.position: passage for passage in found.passages}
        out: dict[tuple[str, int], Passage] = {}
        for passage in found.passages:
            for place in wanted[passage.position]:
                if place in hits and place != passage.position:
                    continue
                if place == passage.position:
                    out[place] = passage
                elif (chunk := chunks.get(place)) and chunk.revision == passage.chunk.revision:
                    out.setdefault(place, replace(
                        passage, chunk=chunk, dense_rank=None, dense_score=None, sparse_rank=None,
                        sparse_score=None, exact=False,
                    ))  # fmt: skip
        return replace(found, passages=[*out.values()])

    def _judged(self, found: FoundPassages) -> FoundPassages:
        """Say how far the passages, or a reranker's candidates, are about the question, alone or
        with earlier ones; documents that are named are not judged. Blocks."""
        query = found.query
        assert query is not None
        if query.doc_ids is not None or not found.passages:
            return found
        started, judge = time.perf_counter(), self._retriever.retriever.relevance
        texts = [text for text in (query.text, query.joined) if text is not None]
        relevance = [judge(text, found.passages, scope=query.scope) for text in texts]
        best = max((each for each in relevance if each is not None), default=None)
        seconds = found.retrieve_s + time.perf_counter() - started
        return replace(found, relevance=best, retrieve_s=seconds)

    async def _rerank(self, found: FoundPassages) -> FoundPassages:
        """Have the reranker choose among the candidates of `find`."""
        query = found.query
        assert query is not None and self._retriever.reranker is not None, "find() has refused this"
        started = time.perf_counter()
        done = await rerank(
            self._retriever.reranker,
            query.joined or query.text,
            found.passages,
            query.top_k,
            deadline_s=self._settings().rerank_deadline_s,
        )
        result = replace(found, passages=done.passages, rerank_s=time.perf_counter() - started)
        if done.warning is None:
            return result.above_floor()
        warnings = [*found.warnings, done.warning]
        if query.min_score is not None:
            warnings.append(
                "min_score was not applied: it is a floor for the reranker's scores, and there are "
                "none"
            )
        return replace(result, warnings=tuple(warnings))

    def require_documents(self, doc_ids: Sequence[str], scope: Scope) -> None:
        """Raise NotFound if one of `doc_ids` is not stored. Blocks."""
        for doc_id in doc_ids:
            if self._retriever.catalog.revision(doc_id, scope=scope) is None:
                raise NotFound(
                    f"documents: there is no document {doc_id!r}; GET /admin/documents lists "
                    "what there is",
                    field="documents",
                )

    def metadata_of(self, passages: Iterable[Passage], scope: Scope) -> dict[str, dict[str, Any]]:
        """Return the metadata of passages' documents by doc_id, if they are stored. Blocks."""
        doc_ids = {passage.chunk.doc_id for passage in passages}
        return self._retriever.catalog.metadata_of(doc_ids, scope=scope)

    def urls_of(self, passages: Iterable[Passage], scope: Scope) -> dict[str, str]:
        """Return, by doc_id, the URLs in the metadata of the passages' documents. Blocks."""
        found = self.metadata_of(passages, scope)
        urls = {doc_id: metadata.get("url") for doc_id, metadata in found.items()}
        return {doc_id: url for doc_id, url in urls.items() if isinstance(url, str) and url}

    def why_nothing(self, choices: SearchChoices, found: FoundPassages) -> str:
        """Say why a search has no passages. Blocks."""
        query = found.query
        assert query is not None
        if not found.is_about_the_question:
            return (
                f"no passage that was found is about the question: their relevance is "
                f"{found.relevance:.2f}, the least is {FLOOR}"
            )
        if found.below_floor:
            return (
                f"nothing was found above min_score {query.min_score:g}: the best of "
                f"{len(found.below_floor)} passages has {found.below_floor[0]:.4g} "
                f"({found.ranked_by})"
            )
        catalog = self._retriever.catalog
        for test, in_lists in as_elements(query.where):
            if catalog.page(1, None, DocFilter(None, in_lists), scope=query.scope).documents:
                name = ".".join(test.path)
                return (
                    f"no passage was found: {name!r} is a list in some documents, which "
                    f'{test.operator!r} does not look into: use {{"contains": …}}'
                )
        if catalog.counts(scope=query.scope).documents:
            return "no passage was found"
        if choices.collection is None:
            return "there are no documents"
        return (
            f"there is no collection {query.scope.collection!r} (GET /admin/collections lists "
            "those that have documents)"
        )


def adds_something(own: Sequence[Passage], joined: Sequence[Passage]) -> bool:
    """Return whether the joined question is nearer to what it finds than the question alone."""
    if not any(passage.dense_score is not None for passage in (*own, *joined)):
        return True
    return _nearest(joined) > _nearest(own)


def _nearest(passages: Sequence[Passage]) -> float:
    return max((p.dense_score for p in passages if p.dense_score is not None), default=-1.0)


def fuse(own: Sequence[Passage], joined: Sequence[Passage]) -> list[Passage]:
    """Return the passages of two searches, best first; of equals that of the question alone."""
    scores: defaultdict[int, float] = defaultdict(float)
    for passages in (own, joined):
        for rank, passage in enumerate(passages, 1):
            scores[passage.chunk.chunk_id] += 1 / (K + rank)
    found = {passage.chunk.chunk_id: passage for passage in (*joined, *own)}
    # What the question names exactly stays first. Sorting keeps the order of equals, in which
    # `scores` was filled.
    exact = {passage.chunk.chunk_id for passage in own if passage.exact}
    best_first = sorted(scores, key=lambda chunk_id: (chunk_id not in exact, -scores[chunk_id]))
    return [replace(found[chunk_id], score=scores[chunk_id]) for chunk_id in best_first]


def citations(
    passages: Sequence[Passage], *, with_text: bool, urls: Mapping[str, str] = _NO_URLS
) -> list[Citation]:
    """Return passages, in the order of the prompt, as clients get them; `urls` are by doc_id."""
    return [
        Citation(
            index=index,
            doc_id=passage.chunk.doc_id,
            chunk_id=passage.chunk.public_id,
            title=passage.chunk.title,
            char_start=passage.chunk.char_start,
            char_end=passage.chunk.char_end,
            page=passage.chunk.page,
            heading=passage.chunk.heading,
            url=urls.get(passage.chunk.doc_id),
            score=passage.score,
            dense_rank=passage.dense_rank,
            dense_score=passage.dense_score,
            sparse_rank=passage.sparse_rank,
            sparse_score=passage.sparse_score,
            rerank_score=passage.rerank_score,
            text=passage.chunk.text if with_text else None,
        )
        for index, passage in enumerate(passages, 1)
    ]
