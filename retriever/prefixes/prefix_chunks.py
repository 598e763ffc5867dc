"""The prefix of a chunk: other chunks of its collection that its KV is precomputed behind.

A chunk that has seen documents of its kind before it was stored is closer to what a full prefill
computes for it (docs/methods.md). Its prefix is chosen once and stored, because its KV is stored
under a key that holds it. Which ones, says prefix_choice.py.

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
from dataclasses import replace

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

from kvstitch.retriever.catalog import queries
from kvstitch.retriever.catalog.catalog import Catalog
from kvstitch.retriever.catalog.reading_groups import GroupSizes, of_owners
from kvstitch.retriever.catalog.tables import accompanied, chunks, companions, documents, scopes
from kvstitch.retriever.documents import Chunk
from kvstitch.retriever.index.vector_search import VectorSearch
from kvstitch.retriever.prefixes.neutral import neutral_chunks
from kvstitch.retriever.prefixes.prefix_choice import (
    ChosenChunks,
    PrefixChoice,
    PrefixKind,
    PrefixRule,
)
from kvstitch.retriever.scope import Owners, Scope
from kvstitch.retriever.sql.expressions import Prepared, among

RUN = 1024
"""More than the chunks of a prefix; the positions of a chunk's second prefix begin here."""

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


class PrefixChunks:
    """Chooses and stores prefixes of chunks. Thread-safe; every call blocks."""

    def __init__(self, catalog: Catalog, index: VectorSearch) -> None:
        self._database = catalog.database
        self._sizes = GroupSizes(catalog.database)
        self._choice = PrefixChoice(catalog, index, self._sizes)

    def of(
        self, chunk_ids: Collection[int], kind: PrefixKind, *, made: bool = False
    ) -> dict[int, list[list[Chunk]]]:
        """Return the prefixes of each chunk for which some were chosen, or, of `made`, are stored.

        A chunk whose prefixes have lost a chunk has none: what was computed behind them is to be
        purged.
        """
        asked = {"chunk_ids": chunk_ids, "kind": kind, "made": int(made)}
        with self._database.read() as read:
            chosen = _CHOSEN.rows(read, **asked)
            rows = _PREFIXES_OF_KIND.rows(read, **asked) if chosen else []
            found = _chunks(read, {other for _, other, _ in rows})
        lost = {chunk_id for chunk_id, other, _ in rows if other not in found}
        prefixes = _divide([row for row in rows if row[0] not in lost], found)
        return {chunk_id: prefixes.get(chunk_id, []) for (chunk_id,) in chosen}

    def behind(self, chunk_ids: Collection[int]) -> dict[int, list[Chunk]]:
        """Return, for each of these chunks, before any is removed, the chunks whose prefix it is
        part of."""
        with self._database.read() as read:
            query = select(companions.c.companion_id, companions.c.chunk_id)
            rows = read.execute(query.where(among(companions.c.companion_id, chunk_ids))).all()
            found = {each.chunk_id: each for each in _prefixed(read, {row[1] for row in rows})}
        out: dict[int, list[Chunk]] = {}
        for in_prefix, chunk_id in rows:
            if chunk_id in found:
                out.setdefault(in_prefix, []).append(found[chunk_id])
        return out

    def prefixed(self, chunk_ids: Collection[int]) -> list[Chunk]:
        """Return those of these chunks that have a prefix, of whatever kind."""
        with self._database.read() as read:
            return _prefixed(read, chunk_ids)

    def choose_all(
        self, wanted: Sequence[tuple[Chunk, int]], rule: PrefixRule, *, scope: Scope
    ) -> dict[int, list[list[Chunk]]]:
        """Choose the prefixes of chunks, each of so many tokens at most, and store them in one
        transaction. What is stored behind a prefix that is chosen again stays in use."""
        if not wanted:
            return {}
        chosen = self._choice.choose(wanted, rule, scope)
        before = self.of(list(chosen), rule.kind)
        self._store(rule.kind, chosen, {i for i in before if before[i] == chosen[i].prefixes})
        removed = {chunk.chunk_id: ChosenChunks([]) for chunk, _ in wanted}
        return {i: each.prefixes for i, each in (removed | chosen).items()}

    def set_made(self, chunk_ids: Collection[int]) -> None:
        """Note that the chunks are stored behind their prefixes; of those that were left it is to
        be noted that they are stored alone, too."""
        self._set(
            chunk_ids, made=1, exact=case((accompanied.c.made == 0, 0), else_=accompanied.c.exact)
        )

    def set_exact(self, chunk_ids: Collection[int]) -> None:
        """Note that the chunks are also stored alone, for prompts that begin with them."""
        self._set(chunk_ids, made=1, exact=1)

    def leave(self, doc_ids: Collection[str], kind: PrefixKind, *, scope: Scope) -> None:
        """Note that nothing of these documents is to be stored before a prompt needs it, until they
        are ingested again."""
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
        self._choice.groups.forget()

    def open(self, kind: PrefixKind, limit: int, *, count: int) -> list[tuple[Scope, str]]:
        """Return documents of whose chunks something is to be chosen or stored, or whose prefixes
        can be longer by now."""
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
        """Return documents with prefixes that can be longer by now."""
        length = select(func.count()).where(
            companions.c.chunk_id == accompanied.c.chunk_id, companions.c.companion_id >= 0
        )
        short = (accompanied.c.few_of > 0, accompanied.c.kind == kind,
                 length.scalar_subquery() < count)  # fmt: skip
        groups = select(*scopes.c["tenant", "collection"], *documents.c["readers", "writers"])
        groups = groups.distinct().select_from(_JOINED).where(*short)
        with self._database.read() as read:
            found = read.execute(groups).all()
        out: list[tuple[Scope, str]] = []
        for tenant, name, *named in found:
            scope, owners = Scope(tenant, name), Owners(*named)
            size = self._sizes.trusted(scope, owners)
            before = max(size // 2, count if size > count else 0)
            query = _DOCUMENTS.distinct().where(
                *short, accompanied.c.few_of <= before, scopes.c.tenant == tenant,
                scopes.c.collection == name, of_owners(owners),
            )  # fmt: skip
            with self._database.read() as read:
                rows = read.execute(query.limit(limit - len(out)))
                out += [(scope, doc_id) for _, _, doc_id in rows]
            if len(out) >= limit:
                break
        return out

    def _store(
        self, kind: PrefixKind, chosen: Mapping[int, ChosenChunks], same: Collection[int]
    ) -> None:
        new = chosen.keys() - same
        with self._database.write() as write:
            for few_of in {chosen[i].few_of for i in same}:
                again = among(
                    accompanied.c.chunk_id, [i for i in same if chosen[i].few_of == few_of]
                )
                write.execute(accompanied.update().where(again).values(few_of=few_of))
            for table in (companions, accompanied):
                write.execute(table.delete().where(among(table.c.chunk_id, new)))
            query = select(chunks.c.chunk_id).where(among(chunks.c.chunk_id, new))
            present = write.scalars(query).all()  # others were removed meanwhile
            rows = [{"chunk_id": i, "kind": kind, "made": 0, "few_of": chosen[i].few_of}
                    for i in present]  # fmt: skip
            if rows:
                write.execute(accompanied.insert(), rows)
            rows = [{"chunk_id": i, "position": position, "companion_id": other.chunk_id}
                    for i in present for run, prefix in enumerate(chosen[i].prefixes)
                    for position, other in enumerate(prefix, RUN * run)]  # fmt: skip
            if rows:
                write.execute(companions.insert(), rows)


def _prefixed(read: Connection, chunk_ids: Collection[int]) -> list[Chunk]:
    rows = _PREFIXES.rows(read, chunk_ids=chunk_ids)
    found = _chunks(read, {chunk_id for row in rows for chunk_id in row[:2]})
    prefixes = _divide([row for row in rows if row[0] in found and row[1] in found], found)
    return [replace(found[chunk_id], prefixes=each) for chunk_id, each in prefixes.items()]


def _chunks(read: Connection, chunk_ids: Collection[int]) -> dict[int, Chunk]:
    return queries.chunks_by_id(read, [i for i in chunk_ids if i >= 0]) | neutral_chunks()


def _divide(
    rows: Sequence[tuple[int, int, int]], found: Mapping[int, Chunk]
) -> dict[int, list[list[Chunk]]]:
    """Return the prefixes of each chunk, from rows of chunk, companion and position."""
    runs: dict[int, dict[int, list[Chunk]]] = {}
    for chunk_id, other, position in rows:
        runs.setdefault(chunk_id, {}).setdefault(position // RUN, []).append(found[other])
    return {chunk_id: list(each.values()) for chunk_id, each in runs.items()}
