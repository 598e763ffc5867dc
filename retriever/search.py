"""Finds passages by meaning, by words or by both, and combines the two rankings.

Both are combined by reciprocal rank fusion (RRF):

    score(d) = sum over rankings of 1 / (K + rank of d),   K = 60, ranks count from 1

It needs no calibration between cosines and BM25 scores.

Passages that hold an identifier of the query, or what is in quotation marks there, come before all
others, as if they were first in both rankings: meaning tells PPR-9087 from PPR-9086 no better than
by chance. What fewer passages hold counts for more.

Source:
    Cormack, Clarke, Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual rank
    learning methods", 2009.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple, get_args

from retriever.analysis.analyser import analyse_query
from retriever.documents import Chunk, Passage, SearchMode
from retriever.embedders.base import Vectors
from retriever.errors import InvalidQuery
from retriever.index.vector_search import VectorSearch
from retriever.scope import Scope

if TYPE_CHECKING:
    from retriever.catalog.catalog import Catalog

K = 60
MAX_FUSED_SCORE = 2 / (K + 1)  # of what is first in both rankings

Hits = Sequence[tuple[int, float]]  # (chunk_id, score), best first


class FusedHit(NamedTuple):
    """One candidate with its rank and score in both rankings; None where it was not found."""

    chunk_id: int
    score: float
    dense_rank: int | None = None
    dense_score: float | None = None
    sparse_rank: int | None = None
    sparse_score: float | None = None
    exact: bool = False


def candidates_per_ranking(top_k: int) -> int:
    """How many hits of each ranking are combined for `top_k` results."""
    return max(4 * top_k, 50)


def reciprocal_rank_fusion(dense: Hits | None, sparse: Hits | None) -> list[FusedHit]:
    """Combine two rankings; best first, ties by chunk_id."""
    fuses = dense is not None and sparse is not None
    scores: dict[int, float] = {}
    for hits in (dense or (), sparse or ()):
        for rank, (chunk_id, score) in enumerate(hits, start=1):
            own = 1 / (K + rank) if fuses else score
            scores[chunk_id] = scores.get(chunk_id, 0.0) + own
    in_dense, in_sparse = _places(dense or ()), _places(sparse or ())
    nowhere = None, None
    return [
        FusedHit(chunk_id, score, *in_dense.get(chunk_id, nowhere),
                 *in_sparse.get(chunk_id, nowhere))
        for chunk_id, score in sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    ]  # fmt: skip


def exact_first(
    hits: Sequence[FusedHit], exact: Sequence[Collection[int]], most: int
) -> list[FusedHit]:
    """Put chunks first that hold what is to be held exactly; they score as the best hit does."""
    weights: defaultdict[int, float] = defaultdict(float)
    for chunk_ids in exact:
        for chunk_id in chunk_ids:
            weights[chunk_id] += 1 / len(chunk_ids)
    if not weights:
        return list(hits)
    known = {hit.chunk_id for hit in hits}
    added = sorted(weights.keys() - known, key=lambda chunk_id: (-weights[chunk_id], chunk_id))
    all_hits = [*hits, *(FusedHit(chunk_id, 0.0) for chunk_id in added[:most])]
    best = max((hit.score for hit in hits), default=0.0)
    return sorted(
        (hit._replace(score=best, exact=True) if hit.chunk_id in weights else hit
         for hit in sorted(all_hits, key=lambda hit: (-hit.score, hit.chunk_id))),
        key=lambda hit: -weights.get(hit.chunk_id, 0.0),
    )  # fmt: skip


def _places(hits: Hits) -> dict[int, tuple[int, float]]:
    return {chunk_id: (rank, score) for rank, (chunk_id, score) in enumerate(hits, start=1)}


def check_query(query: str, top_k: int = 1, mode: SearchMode = "dense") -> None:
    """Raise InvalidQuery if a query cannot be searched as given."""
    if not query.strip():
        raise InvalidQuery("the query is empty")
    try:
        query.encode()
    except UnicodeEncodeError as error:
        raise InvalidQuery(
            f"the query holds a lone surrogate at character {error.start}; send valid Unicode"
        ) from error
    if top_k < 1:
        raise InvalidQuery(f"top_k must be at least 1, not {top_k}")
    if mode not in get_args(SearchMode):
        modes = ", ".join(get_args(SearchMode))
        raise InvalidQuery(f"mode must be one of {modes}, not {mode!r}")


def find_passages(
    catalog: Catalog,
    index: VectorSearch,
    query: str,
    vector: Vectors | None,
    top_k: int,
    *,
    allowed: Collection[int] | None,
    mode: SearchMode,
    scope: Scope,
) -> list[Passage]:
    """Return at most `top_k` passages, best first, ties by chunk_id."""
    wanted = candidates_per_ranking(top_k) if mode == "hybrid" else top_k
    dense = sparse = None
    if vector is not None:
        hits = index.search(vector, wanted, allowed, scope=scope)
        # Rounding can make the cosine of equal vectors slightly larger than 1.
        dense = [(chunk_id, max(-1.0, min(1.0, score))) for chunk_id, score in hits]
    exact: Sequence[Collection[int]] = ()
    if mode != "dense":
        found = catalog.search(analyse_query(query), wanted, allowed, scope=scope)
        sparse, exact = found.ranked, found.exact
    fused = exact_first(reciprocal_rank_fusion(dense, sparse), exact, wanted)
    best = {hit.chunk_id: hit for hit in fused[:top_k]}
    return [
        _passage(chunk, best[chunk.chunk_id])
        for chunk in catalog.chunks(list(best))
        if scope.view.shows(chunk.readers)
    ]


def _passage(chunk: Chunk, hit: FusedHit) -> Passage:
    places = hit._asdict()
    del places["chunk_id"]
    return Passage(chunk, **places)
