"""Groups of vectors, and the vectors at the centre of each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from retriever.embedders.base import Vectors

_ITERATIONS = 10
_DRAWN = 4


def central(vectors: Vectors, groups: int, count: int) -> npt.NDArray[np.int64]:
    """The `count` vectors nearest to the centre of each of so many clusters, nearest first.

    Args:
        vectors: of length one `[n, dim]`, at least `count` and at least `groups` of them.
        groups: clusters that k-means is to find; always the same ones for the same vectors.
        count: of a cluster's vectors; where one has fewer, others near its centre.

    Returns:
        Their places in `vectors`, `[groups, count]`.
    """
    import faiss  # takes a moment to load

    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    clusters = faiss.Kmeans(rows.shape[1], groups, niter=_ITERATIONS)
    clusters.cp.min_points_per_centroid = 1  # small groups are what is wanted here
    clusters.train(rows, init_centroids=_spread(rows, groups))
    likeness = np.asarray(clusters.centroids) @ rows.T
    nearest: npt.NDArray[np.int64] = np.argsort(-likeness, axis=1, kind="stable")[:, :count]
    return nearest


def _spread(vectors: Vectors, count: int) -> Vectors:
    """Vectors to begin with: each is the best of some that are drawn, far ones more likely.

    This is the greedy k-means++. From vectors drawn at random, k-means often ends with two groups
    in the place of one.
    """
    rng = np.random.default_rng(0)
    chosen = [int(rng.integers(len(vectors)))]
    distance = _distance(vectors, vectors[chosen])[0]
    while len(chosen) < count:
        total = float(distance.sum())
        share = distance / total if total else None
        drawn = rng.choice(len(vectors), size=_DRAWN, p=share)
        left = np.minimum(distance, _distance(vectors, vectors[drawn]))
        best = int(left.sum(axis=1).argmin())
        distance = left[best]
        chosen.append(int(drawn[best]))
    return vectors[chosen]


def _distance(vectors: Vectors, others: Vectors) -> npt.NDArray[np.float64]:
    """Squared distances of vectors of length one, `[others, n]`."""
    squared: npt.NDArray[np.float64] = 2 - 2 * (others @ vectors.T).astype(np.float64)
    return squared.clip(min=0)
