"""Companions of chunks: other chunks of the collection that a chunk's KV is computed behind.

A chunk that has seen documents of its kind before it was stored is closer to what a full prefill
computes for it (docs/method.md). Which ones it has seen is chosen once and remembered, because it
is part of what its KV is stored under.

    primer      the chunks at the centre of the chunk's group: a collection is divided into groups
                of about `GROUP` chunks, so a prefix's own KV is computed once for so many; those
                at the centre themselves get the next group's
    neighbours  the chunk's nearest ones
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt

from retriever.catalog.companion_table import Accompanied, CompanionTable, Kind
from retriever.documents import Chunk
from retriever.embedders.base import Vectors
from retriever.index.vector_search import VectorSearch
from retriever.scope import Scope

GROUP = 32
"""Chunks of a group; measured in docs/method.md."""
MAX_GROUPS = 1024  # made at a time, from a sample of the collection
MAX_SAMPLE = 32 * MAX_GROUPS
_SPARE = 8  # further chunks that are looked at, because some say the same as the chunk
_NEAREST = 4  # groups of which one is chosen, because a chunk may be central to some
_REMEMBERED = 64  # collections whose groups are held in memory


@dataclass(frozen=True)
class _Groups:
    """Groups of a collection: their central chunks, and the mean of these chunks' vectors."""

    chunk_ids: list[list[int]]
    means: Vectors


class Companions:
    """Chooses and remembers companions. Thread-safe; every call blocks.

    Args:
        table: where they are remembered.
        index: finds neighbours.
    """

    def __init__(self, table: CompanionTable, index: VectorSearch) -> None:
        self._table = table
        self._index = index
        self._groups: OrderedDict[tuple[Scope, int, int], _Groups] = OrderedDict()
        self._lock = Lock()

    def of(self, chunk_ids: Collection[int], kind: Kind) -> dict[int, list[Chunk]]:
        """Companions by chunk, in the order in which they stand before it.

        Chunks for which none were chosen are left out; one that has lost a companion has none.
        """
        return self._table.of(chunk_ids, kind)

    def behind(self, companion_ids: Collection[int]) -> dict[int, list[Accompanied]]:
        """By companion, the chunks that it stands before; call it before any of them is removed."""
        return self._table.behind(companion_ids)

    def accompanied(self, chunk_ids: Collection[int]) -> list[Accompanied]:
        """Those of these chunks that have companions, of whatever kind."""
        return self._table.accompanied(chunk_ids)

    def choose(
        self, chunk: Chunk, kind: Kind, *, scope: Scope, count: int, max_tokens: int
    ) -> list[Chunk]:
        """Choose a chunk's companions: at most `count`, which together have at most `max_tokens`.

        A primer's stand in its own order, the nearest neighbour stands next to the chunk.
        """
        vector = self._table.vector(chunk.chunk_id)
        if vector is None:  # it was removed meanwhile
            return []
        if kind == "primer":
            found = self._primer(chunk, vector, scope, count)
        else:
            found = self._neighbours(vector, scope, count)
        fitting: list[Chunk] = []
        for other in found:
            if other.text != chunk.text and other.tokens <= max_tokens and len(fitting) < count:
                fitting.append(other)
                max_tokens -= other.tokens
        companions = fitting if kind == "primer" else fitting[::-1]
        self._table.set(chunk.chunk_id, kind, [other.chunk_id for other in companions])
        return companions

    def set_exact(self, chunk_ids: Collection[int]) -> None:
        """The chunks are stored behind nothing but S, too, for prompts that begin with them."""
        self._table.set_exact(chunk_ids)

    def forget(self, companion_ids: Collection[int]) -> None:
        """These chunks are gone: those behind them have no companions until they are chosen."""
        self._table.forget(companion_ids)
        with self._lock:
            self._groups.clear()

    def open(self, kind: Kind, limit: int) -> list[tuple[Scope, str]]:
        """Documents with chunks whose companions are not chosen, or that are not stored exactly."""
        return self._table.open(kind, limit)

    def _neighbours(self, vector: Vectors, scope: Scope, count: int) -> Sequence[Chunk]:
        """The nearest chunks, nearest first, some more than wanted."""
        hits = self._index.search(vector, count + _SPARE, scope=scope)
        return self._table.chunks([chunk_id for chunk_id, _ in hits])

    def _primer(self, chunk: Chunk, vector: Vectors, scope: Scope, count: int) -> Sequence[Chunk]:
        """The central chunks of the group that the vector is nearest to.

        A chunk that is one of them gets the next group's: behind the others of its own it would be
        the only one, and their KV would be computed for it alone.
        """
        with self._lock:
            groups = self._groups_of(scope, count, len(vector))
            if not groups.chunk_ids:
                return []
            nearest = np.argsort(-(groups.means @ vector), kind="stable")
            found = [self._table.chunks(groups.chunk_ids[place]) for place in nearest[:_NEAREST]]
        others = (each for each in found if all(other.text != chunk.text for other in each))
        return next(others, found[0])

    def _groups_of(self, scope: Scope, count: int, dim: int) -> _Groups:
        """The groups; further ones are made when the collection has outgrown them twice."""
        groups = self._groups.get((scope, count, dim))
        if groups is None:
            groups = self._stored_groups(scope, count, dim)
        chunks = self._index.count(scope)
        wanted = max(1, round(chunks / GROUP))
        missing = min(wanted - len(groups.chunk_ids), MAX_GROUPS)
        if chunks > count and missing >= max(1, len(groups.chunk_ids)):
            ids, vectors = self._table.sample(scope, MAX_SAMPLE, dim)
            if len(ids) >= max(count, missing):
                places = central(vectors, missing, count)
                self._table.add_groups(scope, [[ids[place] for place in row] for row in places])
                groups = self._stored_groups(scope, count, dim)
        self._groups[scope, count, dim] = groups
        self._groups.move_to_end((scope, count, dim))
        while len(self._groups) > _REMEMBERED:
            self._groups.popitem(last=False)
        return groups

    def _stored_groups(self, scope: Scope, count: int, dim: int) -> _Groups:
        members = self._table.groups(scope, count, dim)
        chunk_ids = [[chunk_id for chunk_id, _ in group] for group in members]
        means = [np.mean([vector for _, vector in group], axis=0) for group in members]
        return _Groups(chunk_ids, np.array(means, dtype=np.float32))


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
