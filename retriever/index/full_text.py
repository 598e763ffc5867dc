"""What a full-text index does. Callers hold a transaction.

A chunk's words are committed with the chunk, so this index is never behind and needs no saving.
`bm25` keeps them in SQLite's FTS5, `postings` in tables of PostgreSQL. Both store what the analyser
makes of a text, ask for what it makes of a query, and score by the same formula. Words that only
part of a compound or identifier is counts for less (`PART_WEIGHT`).

Where the stored words are another revision's (analysis.REVISION), `rebuild` makes them anew, some
chunks at a time; chunks that it has not come to are found by their old words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from sqlalchemy import Connection

from retriever.analysis.analyser import MAX_QUERY_WORDS, AnalysedQuery, Term

# chunk_id, title, text
ChunkWords = tuple[int, str, str]
Hits = list[tuple[int, float]]

PART_WEIGHT = 0.5


class FullText(Protocol):
    """Chunks of scopes, found by words."""

    def add(self, write: Connection, scope_id: int, chunks: Iterable[ChunkWords]) -> None:
        """Index chunks."""

    def remove(self, write: Connection, scope_id: int, chunks: Iterable[ChunkWords]) -> None:
        """Remove chunks, which must come with the texts that they were added with."""

    def drop(self, write: Connection, scope_id: int) -> None:
        """Forget a scope that has no documents any more."""

    def purge(self, write: Connection) -> None:
        """Make sure that no table holds words of removed chunks."""

    def search(
        self,
        connection: Connection,
        scope_id: int,
        query: AnalysedQuery,
        k: int,
        allowed_ids: Collection[int] | None = None,
    ) -> Hits:
        """The `k` best chunks that have any of the query's words.

        Returns:
            (chunk_id, BM25 score), best first, ties by id.
        """

    def holding(
        self,
        connection: Connection,
        scope_id: int,
        term: Term,
        allowed_ids: Collection[int] | None = None,
    ) -> set[int]:
        """All chunks that have any of a term's spellings."""

    def outdated(self, connection: Connection) -> list[int]:
        """The scopes some of whose words are of another revision."""

    def rebuild(self, write: Connection, scope_id: int, chunks: Sequence[ChunkWords]) -> None:
        """Make the words of chunks anew that `next_outdated` named."""

    def next_outdated(self, connection: Connection, scope_id: int, limit: int) -> list[int]:
        """Some chunks of a scope whose words are of another revision; none: all are of this one."""

    def finish(self, write: Connection, scope_id: int) -> None:
        """Forget what is left of another revision once no chunk's words are."""


def searched_terms(
    query: AnalysedQuery, frequencies: Callable[[Collection[str]], Mapping[str, int]]
) -> list[Term]:
    """The terms that a search asks for: all, or of a long query the rarest and the last ones.

    A document pasted as a question would take seconds, most of them for words that tell nothing.

    Args:
        query: The query.
        frequencies: Tells in how many chunks tokens are; those that are in none may be left out.
    """
    terms = query.terms
    if len(terms) <= MAX_QUERY_WORDS:
        return terms
    counted = frequencies({s[0] for term in terms for s in term.spellings if len(s) == 1})

    def chunks(term: Term) -> int:
        return sum(counted.get(spelling[0], 0) for spelling in term.spellings)

    chosen = query.last.union(query.exact)
    rare = sorted((t for t in terms if t not in chosen and chunks(t)), key=chunks)
    chosen = chosen.union(rare[: max(0, MAX_QUERY_WORDS - len(chosen))])
    return [term for term in terms if term in chosen]
