"""Keyword search: BM25 by SQLite's FTS5, in tables of the catalog; see FullText for what each
function does. Callers hold a transaction.

Every scope has its own table. In a common table, the score of a word would depend on other tenants'
documents and tell about them. FTS5 gets tokens that the analyser has made, with blanks between.

The tables hold no text (content=''), so a chunk's words can only be removed by the analyser that
made them. A table is therefore named by the analyser's revision, `scopes.analyser`. One of another
revision, `scopes.old_words`, is searched further for chunks that the new one has not, until that
has all, and the old one is dropped.

FTS5 keeps removed words in its older segments until they are merged, so a scope from which
something was removed is marked `stale` until `purge`. So is one to which something was added: every
addition is a segment, and a search looks for each word in each of them.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from kvstitch.retriever.analysis.analyser import (
    MAX_QUERY_WORDS,
    REVISION,
    AnalysedQuery,
    Phrase,
    Term,
    analyse_text,
)
from kvstitch.retriever.errors import WrongSchema
from kvstitch.retriever.index.full_text import (
    PART_WEIGHT,
    ChunkWords,
    Hits,
    Searched,
    present,
    searched_terms,
    uncounted,
)
from kvstitch.retriever.sql.expressions import driver_of

CHUNKS = ""  # no word: the number of a scope's chunks, among the counts of its words
REMOVED, GROWN = 1, 2  # why a scope is stale
MERGED_PAGES = 256  # of a scope that has grown, by one purge: some milliseconds


def require() -> None:
    """Raise WrongSchema unless this Python's SQLite has FTS5."""
    with contextlib.closing(sqlite3.connect(":memory:")) as memory:
        try:
            memory.execute("CREATE VIRTUAL TABLE probe USING fts5(body)")
        except sqlite3.OperationalError as error:
            raise WrongSchema(f"this Python's SQLite has no full-text search: {error}") from error


def add(write: Connection, scope_id: int, chunks: Iterable[ChunkWords]) -> None:
    """Index chunks; create the scope's table if it does not exist."""
    tables = _tables(write, scope_id)
    table = tables.new
    if not tables.made:
        # FTS5's plain tokenizer cuts at ASCII's signs alone, and tokens hold none.
        write.exec_driver_sql(
            f"CREATE VIRTUAL TABLE {table} USING fts5(words, parts, content = '', "
            "tokenize = 'ascii')"
        )
        write.exec_driver_sql(f"CREATE VIRTUAL TABLE {table}_counts USING fts5vocab({table}, row)")
        weights = f"bm25(1.0, {PART_WEIGHT})"
        write.exec_driver_sql(f"INSERT INTO {table} ({table}, rank) VALUES ('rank', ?)", (weights,))
        # Of two old ones the newer is not complete.
        kept, *superseded = tables.old or [""]
        for name in superseded:
            _drop(write, name)
        change = "UPDATE scopes SET analyser = ?, old_words = ? WHERE scope_id = ?"
        write.exec_driver_sql(change, (REVISION, kept, scope_id))
    rows = [(chunk_id, *analyse_text(title, text).joined) for chunk_id, title, text in chunks]
    if rows:
        write.exec_driver_sql(f"INSERT INTO {table} (rowid, words, parts) VALUES (?, ?, ?)", rows)
        grown = "UPDATE scopes SET stale = ? WHERE scope_id = ? AND NOT stale"
        write.exec_driver_sql(grown, (GROWN, scope_id))


rebuild = add  # what this release's table has not yet


def remove(write: Connection, scope_id: int, chunks: Iterable[ChunkWords]) -> None:
    """Remove chunks. Their texts must be those they were added with: FTS5 does not keep them."""
    tables = _tables(write, scope_id)
    rows = [("delete", chunk_id, title, text) for chunk_id, title, text in chunks]
    if not rows or not tables.made:
        return
    if tables.old:  # an old table keeps what it has: searches leave out what is not there any more
        own = f"SELECT id FROM {tables.new}_docsize WHERE id IN (SELECT value FROM json_each(?))"
        ids = json.dumps([row[1] for row in rows])
        there = set(write.exec_driver_sql(own, (ids,)).scalars())
        if not (rows := [row for row in rows if row[1] in there]):
            return
    table = tables.new
    write.exec_driver_sql(
        f"INSERT INTO {table} ({table}, rowid, words, parts) VALUES (?, ?, ?, ?)",
        [(*row[:2], *analyse_text(*row[2:]).joined) for row in rows],
    )
    write.exec_driver_sql("UPDATE scopes SET stale = ? WHERE scope_id = ?", (REMOVED, scope_id))


def drop(write: Connection, scope_id: int) -> None:
    """Delete the tables of a scope that has no documents any more."""
    tables = _tables(write, scope_id)
    for table in (tables.new, *tables.old):
        _drop(write, table)


def purge(write: Connection) -> None:
    """Merge the segments of stale scopes, so that no page holds words of removed chunks, and that a
    search looks into few."""
    stale = "SELECT scope_id, stale FROM scopes WHERE stale"
    for scope_id, why in write.exec_driver_sql(stale).all():
        tables = _tables(write, scope_id)
        if not tables.made:  # another release was stopped before it came to this
            continue
        table = tables.new
        if why == GROWN:
            merge = f"INSERT INTO {table} ({table}, rank) VALUES ('merge', ?)"
            write.exec_driver_sql(merge, (-MERGED_PAGES,))
        else:
            write.exec_driver_sql(f"INSERT INTO {table} ({table}) VALUES ('optimize')")
        write.exec_driver_sql("UPDATE scopes SET stale = 0 WHERE scope_id = ?", (scope_id,))


def search(words: Searched, query: AnalysedQuery, k: int) -> Hits:
    if not query.terms or k <= 0:
        return []
    connection, scope_id = words.connection, words.scope_id
    tables = _tables(connection, scope_id)
    among, ids = _allowed_condition(words.allowed_ids)
    found: Hits = []
    if tables.made:
        counts = _counts(words, tables, query.terms)
        terms = searched_terms(query, counts, partial(_beginning, connection, tables.new))
        words.meant.update(terms)
        found = _rank(connection, tables.new, match_expression(terms.values()), among, ids, k)
    for old in tables.old:
        # Chunks that there are, and that the new table has not.
        further = f"{among} AND +rowid IN (SELECT chunk_id FROM chunks)"
        if tables.made:
            further += f" AND +rowid NOT IN (SELECT id FROM {tables.new}_docsize)"
        # Single words alone: the other table's own tokenizer cuts and stems them.
        phrases = (each for term in query.terms[:MAX_QUERY_WORDS] for each in term.spellings)
        words_alone = dict.fromkeys(f'"{phrase[0]}"' for phrase in phrases if len(phrase) == 1)
        found += _rank(connection, old, " OR ".join(words_alone), further, ids, k)
    return sorted(found, key=lambda hit: (-hit[1], hit[0]))[:k]


def holding(words: Searched, term: Term) -> set[int]:
    connection, scope_id = words.connection, words.scope_id
    tables = _tables(connection, scope_id)
    if not tables.made:
        return set()
    if (held := present(term, _counts(words, tables, [term]))) is None:
        return set()
    among, ids = _allowed_condition(words.allowed_ids)
    found = driver_of(connection).execute(
        f"SELECT rowid FROM {tables.new} WHERE {tables.new} MATCH ? {among}",
        (match_expression([held]), *ids),
    )
    return {int(chunk_id) for (chunk_id,) in found}


def frequencies(words: Searched, terms: Iterable[Term]) -> tuple[int, Mapping[str, int]]:
    tables = _tables(words.connection, words.scope_id)
    if not tables.made or tables.old:
        return 0, {}
    if CHUNKS not in words.counts:
        count = f"SELECT count(*) FROM {tables.new}_docsize"
        (words.counts[CHUNKS],) = driver_of(words.connection).execute(count).fetchone()
    return words.counts[CHUNKS], _counts(words, tables, terms)


def outdated(connection: Connection) -> list[int]:
    query = "SELECT scope_id FROM scopes WHERE analyser <> ? OR old_words <> '' ORDER BY scope_id"
    return list(connection.exec_driver_sql(query, (REVISION,)).scalars())


def next_outdated(connection: Connection, scope_id: int, limit: int) -> list[int]:
    tables = _tables(connection, scope_id)
    missing = f"AND chunk_id NOT IN (SELECT id FROM {tables.new}_docsize)" if tables.made else ""
    query = (
        "SELECT chunk_id FROM chunks JOIN documents USING (document) WHERE scope_id = ? "
        f"{missing} ORDER BY chunk_id LIMIT ?"
    )
    return list(connection.exec_driver_sql(query, (scope_id, limit)).scalars())


def finish(write: Connection, scope_id: int) -> None:
    for table in _tables(write, scope_id).old:
        _drop(write, table)
    write.exec_driver_sql("UPDATE scopes SET old_words = '' WHERE scope_id = ?", (scope_id,))


def match_expression(terms: Iterable[Term]) -> str:
    """Terms in FTS5's syntax, any of which may match. Tokens are quoted: they are no operators."""
    return " OR ".join(
        _phrase(phrase) + ("*" if term.starts else "")
        for term in terms
        for phrase in term.spellings
    )


def _phrase(phrase: Phrase) -> str:
    quoted = f'"{" ".join(phrase)}"'
    # Parts have no places: that two are neighbours says nothing.
    return quoted if len(phrase) == 1 else f"words : {quoted}"


def _rank(
    connection: Connection, table: str, expression: str, among: str, ids: tuple[str, ...], k: int
) -> Hits:
    if not expression:
        return []
    found = driver_of(connection).execute(
        f"SELECT rowid, -rank FROM {table} WHERE {table} MATCH ? {among} "
        "ORDER BY rank, rowid LIMIT ?",
        (expression, *ids, k),
    )
    return [(int(chunk_id), float(score)) for chunk_id, score in found]


def _allowed_condition(allowed_ids: Collection[int] | None) -> tuple[str, tuple[str, ...]]:
    if allowed_ids is None:
        return "", ()
    # The plus keeps SQLite from asking for each of these rows whether it matches, which takes
    # hundreds of times as long as looking up here what matches.
    return "AND +rowid IN (SELECT value FROM json_each(?))", (json.dumps(list(allowed_ids)),)


def _counts(words: Searched, tables: _Tables, terms: Iterable[Term]) -> dict[str, int]:
    """In how many chunks the terms' tokens are."""
    # Words that are made anew change the table, and not the catalog's state.
    counts = {} if tables.old else words.counts
    if tokens := uncounted(terms, counts):
        query = (
            f"SELECT term, doc FROM {tables.new}_counts "
            "WHERE term IN (SELECT value FROM json_each(?))"
        )
        found = driver_of(words.connection).execute(query, (json.dumps(tokens),))
        counts.update({**dict.fromkeys(tokens, 0), **dict(found.fetchall())})
    return counts


def _beginning(connection: Connection, table: str, start: str) -> list[tuple[str, int]]:
    query = f"SELECT term, doc FROM {table}_counts WHERE term >= ? AND term < ?"
    return list(driver_of(connection).execute(query, (start, f"{start}\U0010ffff")).fetchall())


@dataclass(frozen=True)
class _Tables:
    """A scope's tables: of this revision, whether it is made, and of others, the fullest first."""

    new: str
    made: bool
    old: list[str]


def _tables(connection: Connection, scope_id: int) -> _Tables:
    query = "SELECT analyser, old_words FROM scopes WHERE scope_id = ?"
    analyser, old_words = driver_of(connection).execute(query, (scope_id,)).fetchone()
    old = [old_words] if old_words else []
    if analyser not in ("", REVISION):
        old.append(f"words_{int(scope_id)}_{analyser}")
    return _Tables(f"words_{int(scope_id)}_{REVISION}", analyser == REVISION, old)


def _drop(write: Connection, table: str) -> None:
    write.exec_driver_sql(f"DROP TABLE IF EXISTS {table}_counts")
    write.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")
