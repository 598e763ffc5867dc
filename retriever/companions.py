"""Companions of chunks: other chunks of the collection that a chunk's KV is computed behind.

A chunk that has seen documents of its kind before it was stored is closer to what a full prefill
computes for it (docs/method.md). Which ones it has seen is chosen once and remembered, because it
is part of what its KV is stored under.

    primer      the chunks at the centre of the chunk's group: a collection is divided into groups
                of about `GROUP` chunks, so a prefix's own KV is computed once for so many; those
                at the centre themselves get the next group's
    neighbours  the chunk's nearest ones

A chunk has a row in `accompanied` once its companions were chosen, and one in `companions` for each
of them, which may be none. The rows of a chunk go with it. Rows that name a removed chunk as a
companion stay until `forget`, so that what was computed behind its text can be found.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Literal

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, Text, bindparam, func, or_, select

from retriever.catalog import queries
from retriever.catalog.tables import (
    accompanied,
    chunks,
    companions,
    documents,
    primers,
    scopes,
    vectors,
)
from retriever.documents import Chunk
from retriever.embedders.base import Vectors
from retriever.index.vector_search import VectorSearch
from retriever.scope import Scope
from retriever.sql.database import Database
from retriever.sql.expressions import Prepared, among

Kind = Literal["primer", "neighbours"]
"""One set for all chunks of a collection, or each chunk's nearest ones."""

GROUP = 32
"""Chunks of a group; measured in docs/method.md."""
MAX_GROUPS = 1024  # made at a time, from a sample of the collection
MAX_SAMPLE = 32 * MAX_GROUPS
_SPARE = 8  # further chunks that are looked at, because some say the same as the chunk
_NEAREST = 4  # groups of which one is chosen, because a chunk may be central to some
_REMEMBERED = 64  # collections whose groups are held in memory

_ROWS = (
    select(companions.c.chunk_id, companions.c.companion_id)
    .join(accompanied, accompanied.c.chunk_id == companions.c.chunk_id)
    .where(among(companions.c.chunk_id, "chunk_ids"))
    .order_by(companions.c.position)
)
_OF_KIND = accompanied.c.kind == bindparam("kind", type_=Text)
_CHOSEN = Prepared(
    select(accompanied.c.chunk_id).where(_OF_KIND, among(accompanied.c.chunk_id, "chunk_ids"))
)
_COMPANIONS_OF_KIND = Prepared(_ROWS.where(_OF_KIND))
_COMPANIONS = Prepared(_ROWS)


@dataclass(frozen=True)
class Accompanied:
    """A chunk with its companions, in the order in which they stand before it."""

    chunk: Chunk
    companions: list[Chunk]


@dataclass(frozen=True)
class _Groups:
    """Groups of a collection: their central chunks, and the mean of these chunks' vectors."""

    chunk_ids: list[list[int]]
    means: Vectors


class Companions:
    """Chooses and remembers companions. Thread-safe; every call blocks.

    Args:
        database: The catalog's; it must have been started.
        index: Finds neighbours.
    """

    def __init__(self, database: Database, index: VectorSearch) -> None:
        self._database = database
        self._index = index
        self._groups: OrderedDict[tuple[Scope, int, int], _Groups] = OrderedDict()
        self._lock = Lock()

    def of(self, chunk_ids: Collection[int], kind: Kind) -> dict[int, list[Chunk]]:
        """Return companions by chunk, in the order in which they stand before it.

        Chunks for which none were chosen are left out. One that has lost a companion has none:
        what was computed behind them is to be purged.
        """
        with self._database.read() as read:
            chosen = _CHOSEN.rows(read, chunk_ids=chunk_ids, kind=kind)
            rows = _COMPANIONS_OF_KIND.rows(read, chunk_ids=chunk_ids, kind=kind) if chosen else []
            found = queries.chunks_by_id(read, {companion for _, companion in rows})
        out: dict[int, list[Chunk]] = {chunk_id: [] for (chunk_id,) in chosen}
        lost = {chunk_id for chunk_id, companion in rows if companion not in found}
        for chunk_id, companion in rows:
            if chunk_id not in lost:
                out[chunk_id].append(found[companion])
        return out

    def behind(self, companion_ids: Collection[int]) -> dict[int, list[Accompanied]]:
        """Return, by companion, the chunks that it stands before.

        Call it before any of them is removed.
        """
        with self._database.read() as read:
            query = select(companions.c.companion_id, companions.c.chunk_id)
            rows = read.execute(query.where(among(companions.c.companion_id, companion_ids))).all()
            found = {a.chunk.chunk_id: a for a in _accompanied(read, {row[1] for row in rows})}
        out: dict[int, list[Accompanied]] = {}
        for companion_id, chunk_id in rows:
            if chunk_id in found:
                out.setdefault(companion_id, []).append(found[chunk_id])
        return out

    def accompanied(self, chunk_ids: Collection[int]) -> list[Accompanied]:
        """Return those of these chunks that have companions, of whatever kind."""
        with self._database.read() as read:
            return _accompanied(read, chunk_ids)

    def choose(
        self, chunk: Chunk, kind: Kind, *, scope: Scope, count: int, max_tokens: int
    ) -> list[Chunk]:
        """Choose a chunk's companions: at most `count`, which together have at most `max_tokens`.

        A primer's stand in its own order, the nearest neighbour stands next to the chunk.
        """
        query = select(vectors.c.vector).where(vectors.c.chunk_id == chunk.chunk_id)
        with self._database.read() as read:
            blob = read.scalar(query)
        if blob is None:  # it was removed meanwhile
            return []
        vector = np.frombuffer(blob, dtype="<f4")
        if kind == "primer":
            found = self._primer(chunk, vector, scope, count)
        else:
            hits = self._index.search(vector, count + _SPARE, scope=scope)
            found = self._chunks([chunk_id for chunk_id, _ in hits])
        fitting: list[Chunk] = []
        for other in found:
            if other.text != chunk.text and other.tokens <= max_tokens and len(fitting) < count:
                fitting.append(other)
                max_tokens -= other.tokens
        chosen = fitting if kind == "primer" else fitting[::-1]
        self._remember(chunk.chunk_id, kind, [other.chunk_id for other in chosen])
        return chosen

    def set_exact(self, chunk_ids: Collection[int]) -> None:
        """Note that the chunks are stored behind nothing but S, too.

        Prompts that begin with them use that.
        """
        with self._database.write() as write:
            named = among(accompanied.c.chunk_id, chunk_ids)
            write.execute(accompanied.update().where(named).values(exact=1))

    def forget(self, companion_ids: Collection[int]) -> None:
        """Forget the choices of the chunks behind these removed ones, so that others are chosen."""
        with self._database.write() as write:
            query = select(companions.c.chunk_id).distinct()
            behind = query.where(among(companions.c.companion_id, companion_ids))
            chunk_ids = write.scalars(behind).all()
            for table in (companions, accompanied):
                write.execute(table.delete().where(among(table.c.chunk_id, chunk_ids)))
        with self._lock:
            self._groups.clear()

    def open(self, kind: Kind, limit: int) -> list[tuple[Scope, str]]:
        """Return documents with chunks whose companions are not chosen, or not stored exactly."""
        columns = (scopes.c.tenant, scopes.c.collection, documents.c.doc_id)
        joined = chunks.join(documents).join(scopes).outerjoin(
            accompanied, accompanied.c.chunk_id == chunks.c.chunk_id
        )  # fmt: skip
        missing = or_(accompanied.c.kind.is_(None), accompanied.c.kind != kind,
                      accompanied.c.exact == 0)  # fmt: skip
        query = select(*columns).distinct().select_from(joined).where(missing).limit(limit)
        with self._database.read() as read:
            return [(Scope(tenant, name), doc) for tenant, name, doc in read.execute(query)]

    def _remember(self, chunk_id: int, kind: Kind, companion_ids: Sequence[int]) -> None:
        with self._database.write() as write:
            write.execute(companions.delete().where(companions.c.chunk_id == chunk_id))
            exists = select(chunks.c.chunk_id).where(chunks.c.chunk_id == chunk_id)
            if write.execute(exists).first() is None:
                return  # it was removed meanwhile
            write.execute(accompanied.delete().where(accompanied.c.chunk_id == chunk_id))
            write.execute(accompanied.insert(), {"chunk_id": chunk_id, "kind": kind})
            rows = [{"chunk_id": chunk_id, "position": position, "companion_id": companion}
                    for position, companion in enumerate(companion_ids)]  # fmt: skip
            if rows:
                write.execute(companions.insert(), rows)

    def _chunks(self, chunk_ids: Sequence[int]) -> list[Chunk]:
        """Return chunks in the order of the ids, without those that no longer exist."""
        with self._database.read() as read:
            found = queries.chunks_by_id(read, chunk_ids)
        return [found[chunk_id] for chunk_id in chunk_ids if chunk_id in found]

    def _primer(self, chunk: Chunk, vector: Vectors, scope: Scope, count: int) -> Sequence[Chunk]:
        """Return the central chunks of the group that the vector is nearest to.

        A chunk that is one of them gets the next group's: behind the others of its own it would be
        the only one, and their KV would be computed for it alone.
        """
        with self._lock:
            groups = self._groups_of(scope, count, len(vector))
            if not groups.chunk_ids:
                return []
            nearest = np.argsort(-(groups.means @ vector), kind="stable")
            found = [self._chunks(groups.chunk_ids[place]) for place in nearest[:_NEAREST]]
        others = (each for each in found if all(other.text != chunk.text for other in each))
        return next(others, found[0])

    def _groups_of(self, scope: Scope, count: int, dim: int) -> _Groups:
        """Return the groups; further ones are made when the collection has outgrown them twice."""
        groups = self._groups.get((scope, count, dim))
        if groups is None:
            groups = self._stored_groups(scope, count, dim)
        chunks = self._index.count(scope)
        wanted = max(1, round(chunks / GROUP))
        missing = min(wanted - len(groups.chunk_ids), MAX_GROUPS)
        if chunks > count and missing >= max(1, len(groups.chunk_ids)):
            ids, vectors = self._sample(scope, MAX_SAMPLE, dim)
            if len(ids) >= max(count, missing):
                places = central(vectors, missing, count)
                self._add_groups(scope, [[ids[place] for place in row] for row in places])
                groups = self._stored_groups(scope, count, dim)
        self._groups[scope, count, dim] = groups
        self._groups.move_to_end((scope, count, dim))
        while len(self._groups) > _REMEMBERED:
            self._groups.popitem(last=False)
        return groups

    def _stored_groups(self, scope: Scope, count: int, dim: int) -> _Groups:
        """Return the groups of a collection that have all their `count` central chunks."""
        query = (
            select(primers.c.number, primers.c.chunk_id, vectors.c.vector)
            .join(vectors, vectors.c.chunk_id == primers.c.chunk_id)
            .where(primers.c.scope_id == bindparam("scope_id"))
            .where(func.length(vectors.c.vector) == 4 * dim)
            .order_by(primers.c.number, primers.c.position)
        )
        with self._database.read() as read:
            rows = read.execute(query, {"scope_id": queries.find_scope(read, scope)}).all()
        members: dict[int, list[tuple[int, Vectors]]] = {}
        for number, chunk_id, blob in rows:
            members.setdefault(number, []).append((chunk_id, np.frombuffer(blob, dtype="<f4")))
        whole = [group for group in members.values() if len(group) == count]
        means = [np.mean([vector for _, vector in group], axis=0) for group in whole]
        chunk_ids = [[chunk_id for chunk_id, _ in group] for group in whole]
        return _Groups(chunk_ids, np.array(means, dtype=np.float32))

    def _add_groups(self, scope: Scope, groups: Sequence[Sequence[int]]) -> None:
        """Add further groups, by the ids of their central chunks."""
        with self._database.write() as write:
            scope_id = queries.find_scope(write, scope)
            last = select(func.coalesce(func.max(primers.c.number), 0))
            first = write.execute(last.where(primers.c.scope_id == scope_id)).scalar_one() + 1
            wanted = {chunk_id for group in groups for chunk_id in group}
            query = select(chunks.c.chunk_id).where(among(chunks.c.chunk_id, wanted))
            there = set(write.scalars(query))
            rows = [
                {"scope_id": scope_id, "number": number, "position": place, "chunk_id": chunk_id}
                for number, group in enumerate(groups, first)
                for place, chunk_id in enumerate(group)
                if chunk_id in there
            ]
            if rows:
                write.execute(primers.insert(), rows)

    def _sample(self, scope: Scope, limit: int, dim: int) -> tuple[list[int], Vectors]:
        """Return ids and vectors `[n, dim]` of some chunks, the same ones every time."""
        shuffled = (vectors.c.chunk_id * 2654435761) % 4294967291
        query = (
            select(vectors.c.chunk_id, vectors.c.vector)
            .join(chunks, chunks.c.chunk_id == vectors.c.chunk_id)
            .join(documents, documents.c.document == chunks.c.document)
            .where(documents.c.scope_id == bindparam("scope_id"))
            .where(func.length(vectors.c.vector) == 4 * dim)
            .order_by(shuffled)
            .limit(limit)
        )
        with self._database.read() as read:
            rows = read.execute(query, {"scope_id": queries.find_scope(read, scope)}).all()
        found = [np.frombuffer(row.vector, dtype="<f4") for row in rows]
        return [row.chunk_id for row in rows], np.array(found, dtype=np.float32)


def _accompanied(read: Connection, chunk_ids: Collection[int]) -> list[Accompanied]:
    rows = _COMPANIONS.rows(read, chunk_ids=chunk_ids)
    found = queries.chunks_by_id(read, {chunk_id for row in rows for chunk_id in row})
    others: dict[int, list[Chunk]] = {}
    for chunk_id, companion in rows:
        if chunk_id in found and companion in found:
            others.setdefault(chunk_id, []).append(found[companion])
    return [Accompanied(found[chunk_id], each) for chunk_id, each in others.items()]


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
