"""Combines the rankings by meaning and by words.

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
from typing import NamedTuple, get_args

from kvstitch.retriever.documents import SearchMode
from kvstitch.retriever.errors import InvalidQuery

K = 60
MAX_FUSED_SCORE = 2 / (K + 1)  # of what is first in both rankings

Hits = Sequence[tuple[int, float]]  # (chunk_id, score), best first


class FusedHit(NamedTuple):
    """One candidate, with (rank, score) in each ranking; of None where it was not found."""

    chunk_id: int
    score: float
    dense: tuple[int, float] | tuple[None, None] = (None, None)
    sparse: tuple[int, float] | tuple[None, None] = (None, None)
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
        FusedHit(i, score, in_dense.get(i, nowhere), in_sparse.get(i, nowhere))
        for i, score in sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    ]


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
