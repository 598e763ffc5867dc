"""The groups of a collection in prefix mode `primer`, and the chunks at the centre of each.

A collection is divided into groups of about `GROUP` chunks. All chunks of a group are precomputed
behind the same central chunks, its primers, so a primer's own KV is computed once for so many: the
chunks nearest to the centre are the first primer, those next to them the second, and so on. The
documents of the same owners are divided by themselves (catalog/reading_groups.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, Select, and_, bindparam, func, select

from kvstitch.retriever.catalog import queries
from kvstitch.retriever.catalog.reading_groups import GroupSizes, of_owners
from kvstitch.retriever.catalog.tables import chunks, documents, primers, vectors
from kvstitch.retriever.embedders import Vectors
from kvstitch.retriever.scope import Owners, Scope
from kvstitch.retriever.sql.database import Database
from kvstitch.retriever.sql.expressions import among

GROUP = 32
"""Chunks of a group; measured in docs/methods.md."""
MAX_GROUPS = 1024  # made at a time, from a sample of the collection
MAX_SAMPLE = 32 * MAX_GROUPS
_REMEMBERED = 64  # collections whose groups are held in memory


@dataclass(frozen=True)
class _Groups:
    """Groups of documents with the same owners."""

    primers: list[list[list[int]]]
    means: Vectors
    last: int


class PrimerGroups:
    """Makes and stores the groups. Thread-safe; every call blocks."""

    def __init__(self, database: Database, sizes: GroupSizes) -> None:
        self._database = database
        self._sizes = sizes
        self._groups: OrderedDict[tuple[Scope, Owners, int, int, int], _Groups] = OrderedDict()
        self._lock = Lock()

    def primers_near(
        self, vector: Vectors, scope: Scope, owners: Owners, *, count: int, primers: int, most: int
    ) -> list[list[list[int]]]:
        """Return the primers of the `most` groups nearest to a vector, as ids of their chunks."""
        dim = len(vector)
        with self._lock:
            found = [self._groups_of(scope, each, count, primers, dim) for each in owners.trusted]
        of_group = [own for groups in found for own in groups.primers]
        means = np.concatenate([groups.means.reshape(-1, dim) for groups in found])
        nearest = np.argsort(-(means @ vector), kind="stable")
        return [of_group[place] for place in nearest[:most]]

    def forget(self) -> None:
        """Read the groups again when they are needed: some of their chunks were removed."""
        with self._lock:
            self._groups.clear()

    def _groups_of(
        self, scope: Scope, owners: Owners, count: int, primers: int, dim: int
    ) -> _Groups:
        """Return the groups; further ones are made when the documents have outgrown them twice."""
        key = scope, owners, count, primers, dim
        groups = self._groups.get(key)
        if groups is None:
            groups = self._stored_groups(*key)
        chunks = self._sizes.own(scope, owners)
        possible = min(primers, max(1, (chunks - 1) // count))
        there = sum(len(own) >= possible for own in groups.primers)
        wanted = max(1, round(chunks / GROUP))
        missing = min(wanted - there, MAX_GROUPS)
        if chunks > count and missing >= max(1, there):
            ids, sampled = self._sample(scope, owners, MAX_SAMPLE, dim)
            if len(ids) >= max(possible * count, missing):
                places = central(sampled, missing, possible * count)
                further = [[ids[place] for place in row] for row in places]
                self._add(scope, owners, further, after=groups.last)
                groups = self._stored_groups(*key)
        self._groups[key] = groups
        self._groups.move_to_end(key)
        while len(self._groups) > _REMEMBERED:
            self._groups.popitem(last=False)
        return groups

    def _stored_groups(
        self, scope: Scope, owners: Owners, count: int, most: int, dim: int
    ) -> _Groups:
        """Return the groups, with those of their first `most` primers that are complete."""
        query = (
            select(primers.c.number, primers.c.position, primers.c.chunk_id, vectors.c.vector)
            .join(vectors, vectors.c.chunk_id == primers.c.chunk_id)
            .where(primers.c.scope_id == bindparam("scope_id"), _primers_of(owners))
            .where(primers.c.position < count * most)
            .where(func.length(vectors.c.vector) == 4 * dim)
            .order_by(primers.c.number, primers.c.position)
        )
        with self._database.read() as read:
            scope_id = queries.find_scope(read, scope)
            rows = read.execute(query, {"scope_id": scope_id}).all()
            last = read.execute(_last_number(scope_id, owners)).scalar_one()
        members: dict[tuple[int, int], list[tuple[int, Vectors]]] = {}
        for number, position, chunk_id, blob in rows:
            member = chunk_id, np.frombuffer(blob, dtype="<f4")
            members.setdefault((number, position // count), []).append(member)
        whole: dict[int, list[list[tuple[int, Vectors]]]] = {}
        for (number, _), primer in members.items():
            if len(primer) == count:
                whole.setdefault(number, []).append(primer)
        best = max(map(len, whole.values()), default=0)
        groups = [own for own in whole.values() if len(own) == best]
        means = [np.mean([vector for own in each for _, vector in own], axis=0) for each in groups]
        ids = [[[chunk_id for chunk_id, _ in own] for own in each] for each in groups]
        return _Groups(ids, np.array(means, dtype=np.float32), last)

    def _add(
        self, scope: Scope, owners: Owners, groups: Sequence[Sequence[int]], *, after: int
    ) -> None:
        """Store further groups, by the ids of their central chunks, unless others have done so."""
        with self._database.write() as write:
            scope_id = queries.find_scope(write, scope)
            if write.execute(_last_number(scope_id, owners)).scalar_one() != after:
                return
            first = write.execute(_last_number(scope_id)).scalar_one() + 1
            wanted = {chunk_id for group in groups for chunk_id in group}
            query = select(chunks.c.chunk_id).where(among(chunks.c.chunk_id, wanted))
            there = set(write.scalars(query))
            rows = [
                {"scope_id": scope_id, "number": number, "position": place,
                 "chunk_id": chunk_id, **asdict(owners)}
                for number, group in enumerate(groups, first)
                for place, chunk_id in enumerate(group)
                if chunk_id in there
            ]  # fmt: skip
            if rows:
                write.execute(primers.insert(), rows)

    def _sample(
        self, scope: Scope, owners: Owners, limit: int, dim: int
    ) -> tuple[list[int], Vectors]:
        """Return ids and vectors `[n, dim]` of some chunks: the same ones every time, whatever
        others have stored between them."""
        query = (
            select(vectors.c.chunk_id, vectors.c.vector)
            .join(chunks, chunks.c.chunk_id == vectors.c.chunk_id)
            .join(documents, documents.c.document == chunks.c.document)
            .where(documents.c.scope_id == bindparam("scope_id"), of_owners(owners))
            .where(func.length(vectors.c.vector) == 4 * dim)
            .order_by(documents.c.revision, documents.c.doc_id, chunks.c.ordinal)
            .limit(limit)
        )
        with self._database.read() as read:
            rows = read.execute(query, {"scope_id": queries.find_scope(read, scope)}).all()
        found = [np.frombuffer(row.vector, dtype="<f4") for row in rows]
        return [row.chunk_id for row in rows], np.array(found, dtype=np.float32)


def _primers_of(owners: Owners) -> ColumnElement[bool]:
    return and_(primers.c.readers == owners.readers, primers.c.writers == owners.writers)


def _last_number(scope_id: int | None, owners: Owners | None = None) -> Select[int]:
    """Select the number of the newest group, of these owners if they are given; 0: none."""
    last = select(func.coalesce(func.max(primers.c.number), 0))
    last = last.where(primers.c.scope_id == scope_id)
    return last if owners is None else last.where(_primers_of(owners))


_ITERATIONS = 10
_DRAWN = 4


def central(vectors: Vectors, groups: int, count: int) -> npt.NDArray[np.int64]:
    """Divide vectors `[n, dim]` of length one into groups; return the places of the `count` nearest
    to each centre, `[groups, count]`."""
    import faiss  # takes a moment to load

    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    clusters = faiss.Kmeans(rows.shape[1], groups, niter=_ITERATIONS)
    clusters.cp.min_points_per_centroid = 1  # small groups are what is wanted here
    clusters.train(rows, init_centroids=_spread(rows, groups))
    likeness = np.asarray(clusters.centroids) @ rows.T
    nearest: npt.NDArray[np.int64] = np.argsort(-likeness, axis=1, kind="stable")[:, :count]
    return nearest


def _spread(vectors: Vectors, count: int) -> Vectors:
    """Vectors to begin with: each is the best of some that are drawn, far ones more likely."""
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
