"""Finds passages by meaning, by words or by both, and combines the two rankings.

Both are combined by reciprocal rank fusion (RRF):

    score(d) = sum over rankings of 1 / (K + rank of d),   K = 60, ranks count from 1

It needs no calibration between cosines and BM25 scores.

Source:
    Cormack, Clarke, Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual rank
    learning methods", 2009.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, get_args

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


@dataclass(frozen=True)
class FusedHit:
    """One candidate with its rank and score in both rankings; None where it was not found."""

    chunk_id: int
    score: float
    dense_rank: int | None = None
    dense_score: float | None = None
    sparse_rank: int | None = None
    sparse_score: float | None = None


def candidates_per_ranking(top_k: int) -> int:
    """How many hits of each ranking are combined for `top_k` results."""
    return max(4 * top_k, 50)


def reciprocal_rank_fusion(dense: Hits | None, sparse: Hits | None) -> list[FusedHit]:
    """Combine two rankings; best first, ties by chunk_id.

    With only one ranking, the result is that ranking with its own scores.
    """
    in_dense = _places(dense or ())
    in_sparse = _places(sparse or ())
    fused = []
    for chunk_id in in_dense.keys() | in_sparse.keys():
        dense_rank, dense_score = in_dense.get(chunk_id, (None, None))
        sparse_rank, sparse_score = in_sparse.get(chunk_id, (None, None))
        if dense is None or sparse is None:
            score = sparse_score if dense is None else dense_score
        else:
            score = sum(1 / (K + rank) for rank in (dense_rank, sparse_rank) if rank is not None)
        fused.append(
            FusedHit(chunk_id, score or 0.0, dense_rank, dense_score, sparse_rank, sparse_score)
        )
    return sorted(fused, key=lambda ranked: (-ranked.score, ranked.chunk_id))


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
    """Return at most `top_k` passages, best first, ties by chunk_id.

    Args:
        catalog: Finds by words, and has the chunks.
        index: Finds by meaning.
        query: The user's query.
        vector: The query's, `[dim]`; None where only words are searched.
        top_k: How many passages to find.
        allowed: Only these chunks; None: all.
        mode: Which rankings to make.
        scope: The tenant's collection.
    """
    wanted = candidates_per_ranking(top_k) if mode == "hybrid" else top_k
    dense = sparse = None
    if vector is not None:
        hits = index.search(vector, wanted, allowed, scope=scope)
        # Rounding can make the cosine of equal vectors slightly larger than 1.
        dense = [(chunk_id, max(-1.0, min(1.0, score))) for chunk_id, score in hits]
    if mode != "dense":
        sparse = catalog.search(query, wanted, allowed, scope=scope)
    best = {hit.chunk_id: hit for hit in reciprocal_rank_fusion(dense, sparse)[:top_k]}
    return [_passage(chunk, best[chunk.chunk_id]) for chunk in catalog.chunks(list(best))]


def _passage(chunk: Chunk, hit: FusedHit) -> Passage:
    places = asdict(hit)
    del places["chunk_id"]
    return Passage(chunk, **places)
