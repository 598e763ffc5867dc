"""Which chunks a chunk is precomputed behind: the choice, of which nothing is stored.

    primer      the earlier chunks of the chunk's own document (see `prefix_starts`); for the
                first ones, the chunks at the centre of the chunk's group (see primer_groups.py), as
                one prefix or several; those at the centre themselves get the prefixes that they are
                not in, or the next group's
    neighbours  the chunk's nearest ones

Behind several prefixes a chunk takes the mean of what it attends to behind each.

Only chunks are in it that its readers may read, and that nobody writes who could not change the
chunk itself (`scope.Owners`): what stands before a chunk changes answers. Where there are too few
for a primer, neutral passages are one (neutral.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sqlalchemy import select

from kvstitch.retriever.catalog.catalog import Catalog
from kvstitch.retriever.catalog.reading_groups import GroupSizes, trusted, trusted_in
from kvstitch.retriever.catalog.tables import chunks, documents, vectors
from kvstitch.retriever.documents import Chunk
from kvstitch.retriever.embedders import Vectors
from kvstitch.retriever.index.vector_search import VectorSearch
from kvstitch.retriever.prefixes.neutral import neutral_prefixes
from kvstitch.retriever.prefixes.primer_groups import PrimerGroups
from kvstitch.retriever.scope import Owners, Scope
from kvstitch.retriever.sql.expressions import among

PrefixKind = Literal["primer", "neighbours"]
"""What stands before in the document, else one prefix for all chunks of a group; or each chunk's
nearest ones."""

_SPARE = 8  # further chunks that are looked at, because some say the same as the chunk
_NEAREST_GROUPS = 4  # of which one is chosen, because a chunk may be central to some


@dataclass(frozen=True)
class PrefixRule:
    """Which prefixes chunks get: of at most `count` chunks of other documents, `primers` of them in
    kind primer, or of so many tokens of the chunk's own document."""

    kind: PrefixKind
    count: int
    primers: int = 1
    document_tokens: int = 0

    @property
    def most(self) -> int:
        """The most chunks that a chunk stands behind, besides its own document's."""
        return self.count * (self.primers if self.kind == "primer" else 1)


@dataclass(frozen=True)
class ChosenChunks:
    prefixes: list[list[Chunk]]
    few_of: int = 0


class PrefixChoice:
    """Chooses prefixes. Thread-safe; every call blocks."""

    def __init__(self, catalog: Catalog, index: VectorSearch, sizes: GroupSizes) -> None:
        self._catalog = catalog
        self._database = catalog.database
        self._index = index
        self._sizes = sizes
        self.groups = PrimerGroups(catalog.database, sizes)

    def choose(
        self, wanted: Sequence[tuple[Chunk, int]], rule: PrefixRule, scope: Scope
    ) -> dict[int, ChosenChunks]:
        query = select(
            vectors.c.chunk_id, vectors.c.vector, *documents.c["readers", "writers"]
        ).select_from(vectors.join(chunks, chunks.c.chunk_id == vectors.c.chunk_id).join(documents))
        named = among(vectors.c.chunk_id, [chunk.chunk_id for chunk, _ in wanted])
        with self._database.read() as read:
            there = {row.chunk_id: row for row in read.execute(query.where(named))}
        chosen: dict[int, ChosenChunks] = {}
        documents_of = _Documents(self._catalog, scope)
        for chunk, max_tokens in wanted:
            if (row := there.get(chunk.chunk_id)) is None:
                continue
            before = documents_of.before(chunk, min(rule.document_tokens, max_tokens))
            if rule.kind == "primer" and before:
                chosen[chunk.chunk_id] = ChosenChunks([before])
                continue
            vector = np.frombuffer(row.vector, dtype="<f4")
            owners = Owners(row.readers, row.writers)
            if rule.kind == "primer":
                found = self._primers(chunk, vector, scope, owners, rule)
            else:
                found = [self._nearest(vector, scope, owners, rule.count + _SPARE)]
            others = [[other for other in each if other.text != chunk.text] for each in found]
            enough = sum(map(len, others)) >= rule.most
            if rule.kind == "primer" and not any(others):
                others = neutral_prefixes(rule.count, rule.primers)
            fitting = [_fitting(each, rule.count, max_tokens) for each in others]
            in_order = fitting if rule.kind == "primer" else [each[::-1] for each in fitting]
            chosen[chunk.chunk_id] = ChosenChunks(
                [each for each in in_order if each],
                0 if enough else self._sizes.trusted(scope, owners),
            )
        return chosen

    def _primers(
        self, chunk: Chunk, vector: Vectors, scope: Scope, owners: Owners, rule: PrefixRule
    ) -> list[list[Chunk]]:
        """Return the primers of the group that the vector is nearest to."""
        near = self.groups.primers_near(
            vector, scope, owners,
            count=rule.count, primers=rule.primers, most=_NEAREST_GROUPS,
        )  # fmt: skip
        for group in near:
            found = [self._catalog.chunks(chunk_ids) for chunk_ids in group]
            if others := [p for p in found if all(other.text != chunk.text for other in p)]:
                return others
        return [self._catalog.chunks(near[0][0])] if near else []

    def _nearest(self, vector: Vectors, scope: Scope, owners: Owners, count: int) -> list[Chunk]:
        """Return the chunks nearest to a vector that documents of these owners may stand behind,
        the nearest first."""
        with self._database.read() as read:
            allowed = trusted_in(read, scope, owners)
        hits = [i for i, _ in self._index.search(vector, count, allowed, scope=scope)]
        with self._database.read() as read:
            # Others may have come between the two.
            still = trusted(read, hits, owners)
        return self._catalog.chunks([chunk_id for chunk_id in hits if chunk_id in still])


def prefix_starts(tokens: Sequence[int], max_tokens: int) -> list[int]:
    """Return for every chunk, and one that would follow, the first that it stands behind, by
    ordinal.

        p0 p1 p2 p3 p4 p5 p6 …       p1 behind p0, p2 behind p0 p1, …
              └── p2 p3 p4 p5        when that is long enough, the next ones begin further on

    So a document is read once, and each chunk but the first ones has at least about half as much
    before it as a prefix may have tokens. Its own ordinal: a chunk stands behind none.
    """
    starts, length = [0], 0
    for place, more in enumerate(tokens):
        start = starts[-1]
        length += more
        if length > max_tokens:
            while length > max(max_tokens // 2, more):
                length -= tokens[start]
                start += 1
        if length > max_tokens:  # this chunk alone is too long
            start, length = place + 1, 0
        starts.append(start)
    return starts


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
