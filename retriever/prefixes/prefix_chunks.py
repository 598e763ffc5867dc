"""The prefix of a chunk: other chunks of its collection that its KV is precomputed behind.

A chunk that has seen documents of its kind before it was stored is closer to what a full prefill
computes for it (docs/method.md). Its prefix is chosen once and stored, because its KV is stored
under a key that holds it.

    primer      the earlier chunks of the chunk's own document (see document_prefix.py); for the
                first ones, the chunks at the centre of the chunk's group (see primer_groups.py), as
                one prefix or several; those at the centre themselves get the prefixes that they are
                not in, or the next group's
    neighbours  the chunk's nearest ones

Of several prefixes the mean of what is computed behind each is stored.

Only chunks of its own reading group are in it, and chunks that everybody may read
(catalog/reading_groups.py).

In the database a chunk has a row in `accompanied` once its prefix was chosen, and a row in
`companions` for each chunk of it, which may be none. They go with the chunk. Rows that name a
removed chunk as part of a prefix stay until `forget`, so that KV that was computed behind its text
can be found.

    chosen ── stored behind it: set_made ── stored alone, too: set_exact
       └── so far prompts take the chunk as it is stored alone, if it is

Of a document whose ingestion was given up nothing is computed beforehand (`leave`).

A prefix that had to be chosen among too few chunks is chosen again when there are enough.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Text,
    bindparam,
    case,
    func,
    literal,
    or_,
    select,
)

from retriever.catalog import queries
from retriever.catalog.catalog import Catalog
from retriever.catalog.reading_groups import GroupSizes, visible, visible_in
from retriever.catalog.tables import accompanied, chunks, companions, documents, scopes, vectors
from retriever.documents import Chunk
from retriever.embedders.base import Vectors
from retriever.index.vector_search import VectorSearch
from retriever.prefixes.document_prefix import prefix_starts
from retriever.prefixes.primer_groups import PrimerGroups
from retriever.scope import Scope
from retriever.sealing import Sealing
from retriever.sql.expressions import Prepared, among

PrefixKind = Literal["primer", "neighbours"]
"""What stands before in the document, else one prefix for all chunks of a group; or each chunk's
nearest ones."""

RUN = 1024
"""More than the chunks of a prefix; the positions of a chunk's second prefix begin here."""
_SPARE = 8  # further chunks that are looked at, because some say the same as the chunk
_NEAREST_GROUPS = 4  # of which one is chosen, because a chunk may be central to some

_ROWS = (
    select(companions.c.chunk_id, companions.c.companion_id, companions.c.position)
    .join(accompanied, accompanied.c.chunk_id == companions.c.chunk_id)
    .where(among(companions.c.chunk_id, "chunk_ids"))
    .order_by(companions.c.position)
)
_OF_KIND = accompanied.c.kind == bindparam("kind", type_=Text)
_MADE = accompanied.c.made >= bindparam("made", type_=Integer)
_CHOSEN = Prepared(
    select(accompanied.c.chunk_id).where(
        _OF_KIND, _MADE, among(accompanied.c.chunk_id, "chunk_ids")
    )
)
_PREFIXES_OF_KIND = Prepared(_ROWS.where(_OF_KIND, _MADE))
_PREFIXES = Prepared(_ROWS)
_JOINED = chunks.join(documents).join(scopes).outerjoin(
    accompanied, accompanied.c.chunk_id == chunks.c.chunk_id
)  # fmt: skip
_DOCUMENTS = select(scopes.c.tenant, scopes.c.collection, documents.c.doc_id).select_from(_JOINED)


@dataclass(frozen=True)
class PrefixedChunk:
    """A chunk with its prefixes, each of them chunks in their order."""

    chunk: Chunk
    prefixes: list[list[Chunk]]


@dataclass(frozen=True)
class PrefixRule:
    """Which prefixes chunks get.

    Attributes:
        kind: Of the prefixes.
        count: The most chunks of a prefix that are not of the chunk's own document.
        primers: The most such prefixes of a chunk in kind primer.
        document_tokens: In kind primer the most tokens of a prefix of the chunk's own document;
            0: there is none.
    """

    kind: PrefixKind
    count: int
    primers: int = 1
    document_tokens: int = 0

    @property
    def most(self) -> int:
        """The most chunks that a chunk stands behind, besides its own document's."""
        return self.count * (self.primers if self.kind == "primer" else 1)


class PrefixChunks:
    """Chooses and stores prefixes of chunks. Thread-safe; every call blocks.

    Args:
        catalog: It must have been started.
        index: Finds neighbours.
    """

    def __init__(self, catalog: Catalog, index: VectorSearch) -> None:
        self._catalog = catalog
        self._database = catalog.database
        self._index = index
        self._sizes = GroupSizes(catalog.database)
        self._groups = PrimerGroups(catalog.database, self._sizes)

    def of(
        self, chunk_ids: Collection[int], kind: PrefixKind, *, made: bool = False
    ) -> dict[int, list[list[Chunk]]]:
        """Return the prefixes of each chunk, each in its order.

        Chunks for which none was chosen are left out. One whose prefixes have lost a chunk has
        none: what was computed behind the old ones is to be purged.

        Args:
            chunk_ids: The chunks.
            kind: Of the prefixes.
            made: Leave out chunks, too, that are not stored behind their prefixes yet.
        """
        asked = {"chunk_ids": chunk_ids, "kind": kind, "made": int(made)}
        with self._database.read() as read:
            chosen = _CHOSEN.rows(read, **asked)
            rows = _PREFIXES_OF_KIND.rows(read, **asked) if chosen else []
            found = queries.chunks_by_id(read, {other for _, other, _ in rows})
        lost = {chunk_id for chunk_id, other, _ in rows if other not in found}
        prefixes = _divided([row for row in rows if row[0] not in lost], found)
        return {chunk_id: prefixes.get(chunk_id, []) for (chunk_id,) in chosen}

    def behind(self, chunk_ids: Collection[int]) -> dict[int, list[PrefixedChunk]]:
        """Return, for each of these chunks, the chunks whose prefix it is part of.

        Call it before any of them is removed.
        """
        with self._database.read() as read:
            query = select(companions.c.companion_id, companions.c.chunk_id)
            rows = read.execute(query.where(among(companions.c.companion_id, chunk_ids))).all()
            found = {
                each.chunk.chunk_id: each for each in _prefixed(read, {row[1] for row in rows})
            }
        out: dict[int, list[PrefixedChunk]] = {}
        for in_prefix, chunk_id in rows:
            if chunk_id in found:
                out.setdefault(in_prefix, []).append(found[chunk_id])
        return out

    def prefixed(self, chunk_ids: Collection[int]) -> list[PrefixedChunk]:
        """Return those of these chunks that have a prefix, of whatever kind."""
        with self._database.read() as read:
            return _prefixed(read, chunk_ids)

    def choose(
        self, chunk: Chunk, rule: PrefixRule, *, scope: Scope, max_tokens: int
    ) -> list[list[Chunk]]:
        """Choose one chunk's prefixes, as `choose_all` does."""
        return self.choose_all([(chunk, max_tokens)], rule, scope=scope)[chunk.chunk_id]

    def choose_all(
        self, wanted: Sequence[tuple[Chunk, int]], rule: PrefixRule, *, scope: Scope
    ) -> dict[int, list[list[Chunk]]]:
        """Choose the prefixes of chunks, and store them in one transaction.

        A primer has its own order; of neighbours the nearest stands next to the chunk.

        Args:
            wanted: The chunks, each with the most tokens of its prefix.
            rule: Which prefixes they get.
            scope: The chunks' tenant and collection.

        Returns:
            The prefixes of each chunk, by its id.
        """
        if not wanted:
            return {}
        query = select(vectors.c.chunk_id, vectors.c.vector, documents.c.readers).select_from(
            vectors.join(chunks, chunks.c.chunk_id == vectors.c.chunk_id).join(documents)
        )
        named = among(vectors.c.chunk_id, [chunk.chunk_id for chunk, _ in wanted])
        with self._database.read() as read:
            sealing = Sealing.of(read)
            there = {row.chunk_id: row for row in read.execute(query.where(named))}
        chosen: dict[int, list[list[Chunk]]] = {}
        few_of: dict[int, int] = {}
        documents_of = _Documents(self._catalog, scope)
        for chunk, max_tokens in wanted:
            row = there.get(chunk.chunk_id)
            if row is None:  # it was removed meanwhile
                chosen[chunk.chunk_id] = []
                continue
            before = documents_of.before(chunk, min(rule.document_tokens, max_tokens))
            if rule.kind == "primer" and before:
                chosen[chunk.chunk_id], few_of[chunk.chunk_id] = [before], 0
                continue
            vector = np.frombuffer(sealing.opened_vector(row.vector, chunk.chunk_id), dtype="<f4")
            if rule.kind == "primer":
                found = self._primers(chunk, vector, scope, row.readers, rule)
            else:
                found = [self._nearest(vector, scope, row.readers, rule.count + _SPARE)]
            others = [[other for other in each if other.text != chunk.text] for each in found]
            enough = sum(map(len, others)) >= rule.most
            few_of[chunk.chunk_id] = 0 if enough else self._sizes.visible(scope, row.readers)
            fitting = [_fitting(each, rule.count, max_tokens) for each in others]
            in_order = fitting if rule.kind == "primer" else [each[::-1] for each in fitting]
            chosen[chunk.chunk_id] = [each for each in in_order if each]
        self._store(rule.kind, {i: chosen[i] for i in few_of}, few_of)
        return chosen

    def set_made(self, chunk_ids: Collection[int]) -> None:
        """Note that the chunks are stored behind the prefixes that were chosen for them.

        Those that were left, and are stored after all, are to be stored alone, too.
        """
        self._set(
            chunk_ids, made=1, exact=case((accompanied.c.made == 0, 0), else_=accompanied.c.exact)
        )

    def set_exact(self, chunk_ids: Collection[int]) -> None:
        """Note that the chunks are also stored behind the instructions alone.

        Prompts that begin with them use that.
        """
        self._set(chunk_ids, made=1, exact=1)

    def leave(self, doc_ids: Collection[str], kind: PrefixKind, *, scope: Scope) -> None:
        """Note that nothing of these documents is to be stored before a prompt needs it.

        What is stored of their chunks is used as before. When a document is ingested again, its
        chunks' prefixes are chosen.
        """
        of_documents = (scopes.c.tenant == scope.tenant, scopes.c.collection == scope.collection,
                        among(documents.c.doc_id, doc_ids))  # fmt: skip
        all_of = select(chunks.c.chunk_id).select_from(_JOINED).where(*of_documents)
        new = all_of.where(accompanied.c.chunk_id.is_(None))
        rows = new.add_columns(literal(kind), literal(0), literal(1))
        with self._database.write() as write:
            unfinished = (accompanied.c.chunk_id.in_(all_of), accompanied.c.exact == 0)
            write.execute(accompanied.update().where(*unfinished).values(exact=1, few_of=0))
            names = ["chunk_id", "kind", "made", "exact"]
            write.execute(accompanied.insert().from_select(names, rows))

    def _set(self, chunk_ids: Collection[int], **values: int | ColumnElement[int]) -> None:
        with self._database.write() as write:
            named = among(accompanied.c.chunk_id, chunk_ids)
            write.execute(accompanied.update().where(named).values(**values))

    def forget(self, removed: Collection[int]) -> None:
        """Forget the prefixes that removed chunks were part of, so that others are chosen."""
        with self._database.write() as write:
            query = select(companions.c.chunk_id).distinct()
            chunk_ids = write.scalars(query.where(among(companions.c.companion_id, removed))).all()
            for table in (companions, accompanied):
                write.execute(table.delete().where(among(table.c.chunk_id, chunk_ids)))
        self._groups.forget()

    def open(self, kind: PrefixKind, limit: int, *, count: int) -> list[tuple[Scope, str]]:
        """Return documents with chunks of which something is to be chosen or stored.

        Their prefix is not chosen, or it is not noted that they are stored behind it and alone; or
        it is shorter than `count` chunks, as there were too few, and there are more by now. Those
        that were left are not among them.
        """
        missing = or_(accompanied.c.kind.is_(None), accompanied.c.kind != kind,
                      accompanied.c.exact == 0)  # fmt: skip
        query = _DOCUMENTS.distinct().where(missing)
        if self._database.shared:  # so that several processes do not all begin with the same
            query = select(query.subquery()).order_by(func.random())
        query = query.limit(limit)
        with self._database.read() as read:
            found = [(Scope(tenant, name), doc) for tenant, name, doc in read.execute(query)]
        return found or self._outgrown(kind, count, limit)

    def _outgrown(self, kind: PrefixKind, count: int, limit: int) -> list[tuple[Scope, str]]:
        """Return documents with prefixes that can be longer by now.

        A collection that has enough chunks now, or twice as many, is worth another look.
        """
        length = select(func.count()).where(companions.c.chunk_id == accompanied.c.chunk_id)
        short = (accompanied.c.few_of > 0, accompanied.c.kind == kind,
                 length.scalar_subquery() < count)  # fmt: skip
        groups = select(scopes.c.tenant, scopes.c.collection, documents.c.readers).distinct()
        groups = groups.select_from(_JOINED).where(*short)
        with self._database.read() as read:
            found = read.execute(groups).all()
        out: list[tuple[Scope, str]] = []
        for tenant, name, readers in found:
            scope = Scope(tenant, name)
            size = self._sizes.visible(scope, readers)
            before = max(size // 2, count if size > count else 0)
            query = _DOCUMENTS.distinct().where(
                *short, accompanied.c.few_of <= before, scopes.c.tenant == tenant,
                scopes.c.collection == name, documents.c.readers == readers,
            )  # fmt: skip
            with self._database.read() as read:
                rows = read.execute(query.limit(limit - len(out)))
                out += [(scope, doc_id) for _, _, doc_id in rows]
            if len(out) >= limit:
                break
        return out

    def _store(
        self, kind: PrefixKind, prefixes: dict[int, list[list[Chunk]]], few_of: dict[int, int]
    ) -> None:
        with self._database.write() as write:
            for table in (companions, accompanied):
                write.execute(table.delete().where(among(table.c.chunk_id, prefixes)))
            query = select(chunks.c.chunk_id).where(among(chunks.c.chunk_id, prefixes))
            present = write.scalars(query).all()  # others were removed meanwhile
            rows = [{"chunk_id": i, "kind": kind, "made": 0, "few_of": few_of[i]} for i in present]
            if rows:
                write.execute(accompanied.insert(), rows)
            rows = [{"chunk_id": i, "position": position, "companion_id": other.chunk_id}
                    for i in present for run, prefix in enumerate(prefixes[i])
                    for position, other in enumerate(prefix, RUN * run)]  # fmt: skip
            if rows:
                write.execute(companions.insert(), rows)

    def _primers(
        self, chunk: Chunk, vector: Vectors, scope: Scope, readers: str, rule: PrefixRule
    ) -> list[list[Chunk]]:
        """Return the primers of the group that the vector is nearest to.

        A primer with the chunk itself is left out, and with it a group that has no other: behind
        the rest of the primer it would be the only one, whose KV would be computed for it alone.
        """
        near = self._groups.primers_near(
            vector, scope, readers,
            count=rule.count, primers=rule.primers, most=_NEAREST_GROUPS,
        )  # fmt: skip
        for group in near:
            found = [self._catalog.chunks(chunk_ids) for chunk_ids in group]
            if others := [p for p in found if all(other.text != chunk.text for other in p)]:
                return others
        return [self._catalog.chunks(near[0][0])] if near else []

    def _nearest(self, vector: Vectors, scope: Scope, readers: str, count: int) -> list[Chunk]:
        """Return the chunks nearest to a vector that documents of these readers may stand behind,
        the nearest first."""
        with self._database.read() as read:
            allowed = visible_in(read, scope, readers)
        hits = [i for i, _ in self._index.search(vector, count, allowed, scope=scope)]
        with self._database.read() as read:
            # Others may have come between the two.
            still = visible(read, hits, readers)
        return self._catalog.chunks([chunk_id for chunk_id in hits if chunk_id in still])


class _Documents:
    """The documents of chunks, each read once."""

    def __init__(self, catalog: Catalog, scope: Scope) -> None:
        self._catalog = catalog
        self._scope = scope
        self._read: dict[str, tuple[list[Chunk], dict[int, int]]] = {}
        self._starts: dict[tuple[str, int], list[int]] = {}

    def before(self, chunk: Chunk, max_tokens: int) -> list[Chunk]:
        """Return the earlier chunks of its document that a chunk stands behind; none if the
        document has changed meanwhile."""
        if not chunk.ordinal or not max_tokens:
            return []
        doc_id = chunk.doc_id
        if doc_id not in self._read:
            own = self._catalog.chunks_of(doc_id, scope=self._scope)
            self._read[doc_id] = own, {each.chunk_id: place for place, each in enumerate(own)}
        own, places = self._read[doc_id]
        place = places.get(chunk.chunk_id, 0)
        if own[place : place + 1] != [chunk]:
            return []
        if (doc_id, max_tokens) not in self._starts:
            tokens = [each.tokens for each in own]
            self._starts[doc_id, max_tokens] = prefix_starts(tokens, max_tokens)
        return own[self._starts[doc_id, max_tokens][place] : place]


def _fitting(others: Sequence[Chunk], count: int, max_tokens: int) -> list[Chunk]:
    """Return the first chunks, as many as fit."""
    fitting: list[Chunk] = []
    for other in others:
        if other.tokens <= max_tokens and len(fitting) < count:
            fitting.append(other)
            max_tokens -= other.tokens
    return fitting


def _prefixed(read: Connection, chunk_ids: Collection[int]) -> list[PrefixedChunk]:
    rows = _PREFIXES.rows(read, chunk_ids=chunk_ids)
    found = queries.chunks_by_id(read, {chunk_id for row in rows for chunk_id in row[:2]})
    prefixes = _divided([row for row in rows if row[0] in found and row[1] in found], found)
    return [PrefixedChunk(found[chunk_id], each) for chunk_id, each in prefixes.items()]


def _divided(
    rows: Sequence[tuple[int, int, int]], found: Mapping[int, Chunk]
) -> dict[int, list[list[Chunk]]]:
    """Return the prefixes of each chunk, from rows of chunk, companion and position."""
    runs: dict[int, dict[int, list[Chunk]]] = {}
    for chunk_id, other, position in rows:
        runs.setdefault(chunk_id, {}).setdefault(position // RUN, []).append(found[other])
    return {chunk_id: list(each.values()) for chunk_id, each in runs.items()}
