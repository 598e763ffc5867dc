"""An approximate index: vectors lie in lists around centres, and a search reads the nearest lists.

It is FAISS's IVF over whole vectors: scores are exact, vectors can be removed at any time, and what
a search misses lies in lists that it did not read. How many it reads is chosen by measuring: the
fewest with which it finds as much as is wanted of what an exact search finds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from retriever.embedders.base import Vectors

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
