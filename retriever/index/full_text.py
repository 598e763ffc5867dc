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
from dataclasses import dataclass, field
from typing import Protocol

from sqlalchemy import Connection

from kvstitch.retriever.analysis.analyser import MAX_QUERY_WORDS, AnalysedQuery, Term
from kvstitch.retriever.analysis.spelling import one_letter_apart

# chunk_id, title, text
ChunkWords = tuple[int, str, str]
Hits = list[tuple[int, float]]
# Gives the tokens of a scope that begin so, and in how many chunks each is.
Beginning = Callable[[str], Iterable[tuple[str, int]]]

PART_WEIGHT = 0.5
LEAST_MISSPELT = 5  # letters of a stem that may be misspelt: of shorter ones too much is near
MOST_MISSPELT = 8  # words of a query that are looked for so
MOST_MEANT = 3  # words that a misspelt one may mean


@dataclass(frozen=True)
class Searched:
    """Where words are searched, in a transaction; look-ups add to `counts`, in how many chunks
    words are, and a search to `meant`, as what it looked for each term."""

    connection: Connection
    scope_id: int
    counts: dict[str, int]
    allowed_ids: Collection[int] | None = None
    meant: dict[Term, Term] = field(default_factory=dict)


@dataclass(frozen=True)
class WordHits:
    """What a query's words find, and what was looked for in place of each of them."""

    ranked: Hits
    exact: list[set[int]]
    meant: Mapping[Term, Term] = field(default_factory=dict)


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

    def search(self, words: Searched, query: AnalysedQuery, k: int) -> Hits:
        """The `k` best chunks that have any of the query's words, best first, ties by id."""

    def holding(self, words: Searched, term: Term) -> set[int]:
        """All chunks that have any of a term's spellings."""

    def frequencies(self, words: Searched, terms: Iterable[Term]) -> tuple[int, Mapping[str, int]]:
        """How many chunks a scope has, 0 where their words are made anew, and in how many of them
        the terms' tokens are."""

    def outdated(self, connection: Connection) -> list[int]:
        """The scopes some of whose words are of another revision."""

    def rebuild(self, write: Connection, scope_id: int, chunks: Sequence[ChunkWords]) -> None:
        """Make the words of chunks anew that `next_outdated` named."""

    def next_outdated(self, connection: Connection, scope_id: int, limit: int) -> list[int]:
        """Some chunks of a scope whose words are of another revision; none: all are of this one."""

    def finish(self, write: Connection, scope_id: int) -> None:
        """Forget what is left of another revision once no chunk's words are."""


def uncounted(terms: Iterable[Term], counts: Mapping[str, int]) -> list[str]:
    """The tokens of terms of which `counts` does not say in how many chunks they are."""
    phrases = (phrase for term in terms if not term.starts for phrase in term.spellings)
    return list({token for phrase in phrases for token in phrase if token not in counts})


def searched_terms(
    query: AnalysedQuery, counts: dict[str, int], beginning: Beginning
) -> dict[Term, Term]:
    """The terms that a search asks for, as what: those there are, or of a long query its rarest and
    last; for a word that no text has, those one letter from it, which are added to `counts`."""
    found = {term: present(term, counts) for term in query.terms}
    for term in [term for term, there in found.items() if there is None][:MOST_MISSPELT]:
        found[term] = _misspelt(term, counts, beginning)
    chosen = [term for term, there in found.items() if there is not None]
    if len(chosen) > MAX_QUERY_WORDS:

        def chunks(term: Term) -> int:
            return sum(min(map(counts.__getitem__, s)) for s in (found[term] or term).spellings)

        kept = set(chosen).intersection(query.last.union(query.exact))
        others = sorted((t for t in chosen if t not in kept and not t.starts), key=chunks)
        kept.update(others[: max(0, MAX_QUERY_WORDS - len(kept))])
        chosen = [term for term in chosen if term in kept]
    return {term: there for term in chosen if (there := found[term]) is not None}


def _misspelt(term: Term, counts: dict[str, int], beginning: Beginning) -> Term | None:
    word = term.spellings[0][0]
    if term.is_phrase or len(word) < LEAST_MISSPELT or not word.isalpha():
        return None
    # Of the first letters one may be missing, or two may have changed places.
    starts = {word[:2], word[0] + word[2], word[1] + word[0]}
    near = {
        token: chunks
        for start in starts
        for token, chunks in beginning(start)
        if any(one_letter_apart(each[0], token) for each in term.spellings)
    }
    counts.update(near)
    commonest = sorted(near, key=lambda token: (-near[token], token))[:MOST_MEANT]
    return Term(tuple((token,) for token in commonest)) if commonest else None


def present(term: Term, counts: Mapping[str, int]) -> Term | None:
    """The term with those spellings all of whose words there are; None: there are none."""
    if term.starts:
        return term
    spellings = tuple(s for s in term.spellings if all(map(counts.get, s)))
    return Term(spellings) if spellings else None
