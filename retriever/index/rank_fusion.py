"""Combines two rankings into one by reciprocal rank fusion (RRF).

    score(d) = sum over rankings of 1 / (K + rank of d),   K = 60, ranks count from 1

It needs no calibration between cosines and BM25 scores.

Source:
    Cormack, Clarke, Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual rank
    learning methods", 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
