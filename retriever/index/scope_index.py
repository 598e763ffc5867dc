"""The vectors of one scope: searched exactly while they are few, then by inverted lists.

These are FAISS's IVF over whole vectors, around centres: scores are exact, vectors can be removed
at any time, and what a search misses lies in lists that it did not read. It reads the fewest with
which it was measured to find as much as is wanted of what an exact search finds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstitch.retriever.embedders import Vectors

RECALL = 0.99
"""Share of the best of an exact search that must be found, on average."""
DEPTHS = (10, 100, 1_000)
"""So many best vectors are measured. A search for fewer among those that pass a filter is like one
for more among all: ten of a tenth of the vectors are the hundred best."""
QUERIES = 200
"""Vectors that recall is measured with."""
MAX_SHARE = 0.25
"""Where more of the lists must be read for the ten best, an exact search is as good."""
_ITERATIONS = 8
_PER_CENTRE = 40
_BLOCK = 16_384

Ids = npt.NDArray[np.int64]
Stopped = Callable[[], bool]


class BuildStopped(Exception):
    """`stopped` returned true while an index was being built."""


@dataclass(frozen=True)
class Reads:
    """How many lists a search reads, and what was measured of it."""

    probes: tuple[int, ...]
    recall: float

    def lists(self, depth: float) -> int | None:
        """Lists to read for the `depth` best vectors; None: all."""
        enough = (n for most, n in zip(DEPTHS, self.probes, strict=True) if depth <= most)
        return next(enough, None)


def build(ids: Ids, vectors: Vectors, stopped: Stopped = lambda: False) -> tuple[Any, Reads] | None:
    """Build an index in the calling thread, which takes a minute for a million vectors."""
    import faiss  # takes a moment to load

    faiss.omp_set_num_threads(1)  # of this thread: searches and answers need the other cores
    random = np.random.default_rng(0)
    lists = max(1, int(4 * math.sqrt(len(vectors))))
    centres: Any = faiss.IndexFlatIP(vectors.shape[1])
    centres.add(_centres(vectors, lists, random, stopped))
    index: Any = faiss.IndexIVFFlat(centres, vectors.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors[:1])  # the centres are there: this marks the index as trained
    for start in range(0, len(vectors), _BLOCK):
        _go_on(stopped)
        block = slice(start, start + _BLOCK)
        index.add_with_ids(vectors[block], ids[block])
    reads = _measured(index, ids, vectors, random, stopped)
    return None if reads is None else (index, reads)


def list_content(index: Any, number: int) -> tuple[Ids, Vectors]:
    """A copy of the ids and vectors of one inverted list."""
    import faiss

    size = index.invlists.list_size(number)
    if not size:
        return np.empty(0, np.int64), np.empty((0, index.d), np.float32)
    ids = faiss.rev_swig_ptr(index.invlists.get_ids(number), size).copy()
    codes = faiss.rev_swig_ptr(index.invlists.get_codes(number), size * index.code_size)
    return ids, codes.view(np.float32).reshape(size, index.d).copy()


def _centres(vectors: Vectors, lists: int, random: np.random.Generator, stopped: Stopped) -> Any:
    import faiss

    wanted = min(len(vectors), lists * _PER_CENTRE)
    sample = vectors[np.sort(random.choice(len(vectors), wanted, replace=False))]
    centres = sample[random.choice(wanted, lists, replace=False)]
    for _ in range(_ITERATIONS):
        _go_on(stopped)
        means = faiss.Kmeans(vectors.shape[1], lists, niter=1, spherical=True)
        means.cp.min_points_per_centroid = 1
        means.cp.max_points_per_centroid = _PER_CENTRE + 1
        means.train(sample, init_centroids=centres)
        centres = np.asarray(means.centroids)
    return centres


def _measured(
    index: Any, ids: Ids, vectors: Vectors, random: np.random.Generator, stopped: Stopped
) -> Reads | None:
    """The fewest lists with which enough is found; None if they are too many for the ten best."""
    import faiss

    queries = _queries(vectors, random)
    most = min(DEPTHS[-1], len(vectors))
    _, rows = faiss.knn(queries, vectors, most, metric=faiss.METRIC_INNER_PRODUCT)
    wanted = ids[rows]
    chosen: list[int] = []
    first = 0.0
    probes = 1
    for depth in DEPTHS:
        while True:
            _go_on(stopped)
            index.nprobe = probes
            _, found = index.search(queries, min(depth, most))
            recall = _common_share(found, wanted[:, :depth])
            if recall >= RECALL or probes == index.nlist:
                break
            probes = min(index.nlist, math.ceil(1.5 * probes))
        chosen.append(probes)
        first = first or recall
    return Reads(tuple(chosen), first) if chosen[0] <= index.nlist * MAX_SHARE else None


def _queries(vectors: Vectors, random: np.random.Generator) -> Vectors:
    """Vectors that are to the stored ones as questions are to passages: a cosine of about 0.75 to
    one."""
    stored, other = (vectors[random.integers(len(vectors), size=QUERIES)] for _ in range(2))
    noise = random.normal(size=stored.shape) / math.sqrt(stored.shape[1])
    return (stored + 0.25 * other + 0.8 * noise).astype(np.float32)


def _common_share(found: Ids, wanted: Ids) -> float:
    common = sum(len(np.intersect1d(a, b)) for a, b in zip(found, wanted, strict=True))
    return float(common / wanted.size)


def _go_on(stopped: Stopped) -> None:
    if stopped():
        raise BuildStopped


# FAISS may sum a product in another order in a range search than in a search for the best k.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class SavedScope:
    """The file with one scope's vectors; `reads` as in `ScopeIndex`."""

    tenant: str
    collection: str
    count: int
    file: str
    sha256: str
    reads: Reads | None = None


@dataclass
class ScopeIndex:
    """One scope's vectors. The caller holds a lock."""

    faiss: Any
    ids: set[int]
    reads: Reads | None = None
    saved: SavedScope | None = None
    measured_at: int = 0
    changes: dict[int, Vectors | None] | None = None

    @classmethod
    def empty(cls, dim: int) -> ScopeIndex:
        import faiss

        return cls(faiss.IndexIDMap2(faiss.IndexFlatIP(dim)), set())

    def remove(self, ids: Collection[int]) -> int:
        """Remove vectors; unknown ids are ignored. Returns how many were removed."""
        gone = self.ids.intersection(ids)
        if gone:
            self.faiss.remove_ids(np.fromiter(gone, dtype=np.int64, count=len(gone)))
            self.ids -= gone
            self.saved = None
            if self.changes is not None:
                self.changes.update(dict.fromkeys(gone))
        return len(gone)

    def add(self, ids: Sequence[int], vectors: Vectors) -> None:
        """Add vectors `[len(ids), dim]` under ids that it does not have."""
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
        self.faiss.add_with_ids(rows, np.asarray(ids, dtype=np.int64))
        self.ids.update(ids)
        self.saved = None
        if self.changes is not None:
            self.changes.update(zip(ids, rows, strict=True))

    def search(
        self, vector: Vectors, k: int, allowed_ids: Collection[int] | None
    ) -> list[tuple[int, float]]:
        """(id, inner product) of the `k` best, best first, ties by id."""
        allowed = self.ids if allowed_ids is None else self.ids.intersection(allowed_ids)
        if not allowed or k <= 0:
            return []
        query = np.ascontiguousarray(vector, dtype=np.float32).reshape(1, -1)
        selector: Any = None
        if allowed_ids is not None:
            import faiss

            ids = np.fromiter(allowed, dtype=np.int64, count=len(allowed))
            selector = faiss.IDSelectorBatch(ids)
        probes = None
        if self.reads is not None:
            probes = self.reads.lists(k * len(self.ids) / len(allowed))
        hits = self._search(query, k, len(allowed), self._parameters(selector, probes))
        if len(hits) < min(k, len(allowed)):  # the lists that were read hold too few
            hits = self._search(query, k, len(allowed), self._parameters(selector, None))
        return hits

    def _search(
        self, query: Vectors, k: int, allowed: int, parameters: Any
    ) -> list[tuple[int, float]]:
        # One hit more than wanted shows whether there is a tie at the last place.
        fetched = min(k + 1, allowed)
        scores, ids = self.faiss.search(query, fetched, params=parameters)
        scores, ids = scores[0], ids[0]
        if fetched > k and ids[k] >= 0 and scores[k] == scores[k - 1]:
            below = float(scores[k]) - _ROUNDING
            _, scores, ids = self.faiss.range_search(query, below, params=parameters)
        found = zip(ids.tolist(), scores.tolist(), strict=True)
        hits = [(i, score) for i, score in found if i >= 0]
        return sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:k]

    def _parameters(self, selector: Any, probes: int | None) -> Any:
        """What a search reads: of so many lists (None: of all) what the selector selects."""
        if selector is None and self.reads is None:
            return None
        import faiss

        # SWIG's keywords are not in faiss's stubs.
        flat: Any = faiss.SearchParameters
        lists: Any = faiss.SearchParametersIVF
        if self.reads is None:
            return flat(sel=selector)
        return lists(sel=selector, nprobe=probes or self.faiss.nlist)

    def content(self) -> tuple[Ids, Vectors]:
        """A copy of the ids `[n]` and vectors `[n, dim]`."""
        import faiss

        index = self.faiss
        if self.reads is None:
            ids = faiss.vector_to_array(index.id_map)
            flat: Any = faiss.downcast_index(index.index)
            rows = faiss.rev_swig_ptr(flat.get_xb(), index.ntotal * index.d)
            return ids, rows.reshape(-1, index.d).copy()
        parts = [list_content(index, number) for number in range(index.nlist)]
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([v for _, v in parts])

    def replace_by(self, index: Any, reads: Reads | None) -> None:
        """Search another FAISS index from now on: it gets the changes since it was begun."""
        assert self.changes is not None
        changes = self.changes
        if changes:
            index.remove_ids(np.fromiter(changes, dtype=np.int64, count=len(changes)))
        added = {i: vector for i, vector in changes.items() if vector is not None}
        if added:
            rows = np.stack(list(added.values()))
            index.add_with_ids(rows, np.fromiter(added, dtype=np.int64, count=len(added)))
        self.faiss, self.reads, self.saved = index, reads, None
