"""Keyword search in PostgreSQL: BM25 over postings, in tables of the catalog; see FullText for what
each function does.

PostgreSQL's own ranking (ts_rank) knows no frequencies of words in the corpus. So the words of
chunks are rows here, with their positions, and BM25 is computed by a query, as SQLite's FTS5
computes it:

    score = sum over words of idf · f · (K1 + 1) / (f + K1 · (1 - B + B · length / mean length))
    idf   = ln((N - n + 1/2) / (n + 1/2)), at least 10^-6

`N` counts the scope's chunks, `n` those with the word, `f` how often a chunk has it. Parts, of
which each is there once and counts PART_WEIGHT, have the position PART.

Source:
    FTS5's bm25(), https://www.sqlite.org/fts5.html#the_bm25_function.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection

from kvstitch.retriever.analysis.analyser import REVISION, AnalysedQuery, Phrase, Term, analyse_text
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

K1, B, LEAST_IDF = 1.2, 0.75, 1e-6
PART = -1

_ANY = "ANY(CAST(%s AS bigint[]))"
_COUNT = """
    INSERT INTO scope_words VALUES (%s, %s, %s) ON CONFLICT (scope_id) DO UPDATE
    SET chunks = scope_words.chunks + excluded.chunks, words = scope_words.words + excluded.words
"""
_ADD = """
    INSERT INTO postings
    SELECT %s, found.key, %s, ARRAY(
        SELECT CAST(position AS INTEGER) FROM jsonb_array_elements_text(found.value) AS position)
    FROM jsonb_each(CAST(%s AS jsonb)) AS found
"""
_COUNTED = (
    f"CAST(CASE WHEN positions[1] = {PART} THEN {PART_WEIGHT} ELSE cardinality(positions) END "
    "AS double precision)"
)
_WHOLE = f"""
    SELECT word AS term, chunk_id, {_COUNTED} AS f FROM postings
    WHERE scope_id = %s AND word = ANY(CAST(%s AS text[]))
"""
_START = f"""
    SELECT CAST(%s AS text) AS term, chunk_id, sum({_COUNTED}) AS f
    FROM postings WHERE scope_id = %s AND starts_with(word, %s) AND word >= %s GROUP BY chunk_id
"""
_SEARCH = f"""
    WITH hits AS ({{hits}}),
    rare AS (
        SELECT term, greatest(ln((chunks - n + 0.5) / (n + 0.5)), {LEAST_IDF}) AS idf,
               CAST(words AS double precision) / chunks AS mean
        FROM (SELECT term, CAST(count(*) AS double precision) AS n FROM hits GROUP BY term) AS t,
             scope_words WHERE scope_id = %s
    )
    SELECT chunk_id, sum(
        idf * f * ({K1} + 1) / (f + {K1} * (1 - {B} + {B} * length / mean)) ORDER BY term
    ) AS score
    FROM hits JOIN rare USING (term) JOIN chunk_words USING (chunk_id) {{among}}
    GROUP BY chunk_id ORDER BY score DESC, chunk_id LIMIT %s
"""


def add(write: Connection, scope_id: int, chunks: Iterable[ChunkWords]) -> None:
    lengths: list[tuple[int, int, str]] = []
    rows: list[tuple[int, int, str]] = []
    for chunk_id, title, text in chunks:
        positions: dict[str, list[int]] = defaultdict(list)
        analysed = analyse_text(title, text)
        for position, word in enumerate(analysed.words):
            positions[word].append(position)
        positions.update((part, [PART]) for part in analysed.parts)
        lengths.append((chunk_id, len(analysed.words) + len(analysed.parts), REVISION))
        rows.append((scope_id, chunk_id, json.dumps(positions)))
    if rows:
        insert = "INSERT INTO chunk_words (chunk_id, length, analyser) VALUES (%s, %s, %s)"
        write.exec_driver_sql(insert, lengths)
        write.exec_driver_sql(_ADD, rows)
    count = (scope_id, len(lengths), sum(length for _, length, _ in lengths))
    write.exec_driver_sql(_COUNT, count)


def remove(write: Connection, scope_id: int, chunks: Iterable[ChunkWords]) -> None:
    """Remove chunks before their rows are deleted; their postings go with these."""
    _uncount(write, scope_id, [chunk_id for chunk_id, *_ in chunks])


def drop(write: Connection, scope_id: int) -> None:
    """The rows of a scope go with it."""


def purge(write: Connection) -> None:
    """The rows of removed chunks went with them; VACUUM frees their space."""


def search(words: Searched, query: AnalysedQuery, k: int) -> Hits:
    if not query.terms or k <= 0:
        return []
    connection, scope_id = words.connection, words.scope_id
    terms = searched_terms(query, _counts(words, query.terms), partial(_beginning, words))
    if not terms:
        return []
    words.meant.update(terms)
    hits, values = _hits(scope_id, terms.values())
    among = ""
    more_values: list[Any] = [scope_id]
    if words.allowed_ids is not None:
        among = f"WHERE chunk_id = {_ANY}"
        more_values.append(list(words.allowed_ids))
    rows = driver_of(connection).execute(
        _SEARCH.format(hits=hits, among=among), (*values, *more_values, k)
    )
    return [(int(chunk_id), float(score)) for chunk_id, score in rows]


def holding(words: Searched, term: Term) -> set[int]:
    connection, scope_id = words.connection, words.scope_id
    if (held := present(term, _counts(words, [term]))) is None:
        return set()
    hits, values = _hits(scope_id, [held])
    sql = f"SELECT DISTINCT chunk_id FROM ({hits}) AS hits"
    if words.allowed_ids is not None:
        sql += f" WHERE chunk_id = {_ANY}"
        values.append(list(words.allowed_ids))
    return {int(chunk_id) for (chunk_id,) in driver_of(connection).execute(sql, values)}


def frequencies(words: Searched, terms: Iterable[Term]) -> tuple[int, Mapping[str, int]]:
    query = "SELECT chunks FROM scope_words WHERE scope_id = %s"
    found = driver_of(words.connection).execute(query, (words.scope_id,)).fetchone()
    return (0 if found is None else int(found[0])), _counts(words, terms)


def outdated(connection: Connection) -> list[int]:
    query = (
        "SELECT DISTINCT scope_id FROM chunk_words JOIN chunks USING (chunk_id) "
        "JOIN documents USING (document) WHERE analyser <> %s ORDER BY scope_id"
    )
    return list(connection.exec_driver_sql(query, (REVISION,)).scalars())


def next_outdated(connection: Connection, scope_id: int, limit: int) -> list[int]:
    query = (
        "SELECT chunk_id FROM chunk_words JOIN chunks USING (chunk_id) "
        "JOIN documents USING (document) WHERE scope_id = %s AND analyser <> %s "
        "ORDER BY chunk_id LIMIT %s"
    )
    return list(connection.exec_driver_sql(query, (scope_id, REVISION, limit)).scalars())


def rebuild(write: Connection, scope_id: int, chunks: Sequence[ChunkWords]) -> None:
    ids = [chunk_id for chunk_id, *_ in chunks]
    _uncount(write, scope_id, ids)
    for table in ("postings", "chunk_words"):
        write.exec_driver_sql(f"DELETE FROM {table} WHERE chunk_id = {_ANY}", (ids,))
    add(write, scope_id, chunks)


def finish(write: Connection, scope_id: int) -> None:
    """Nothing is left: the rows were replaced."""


def _uncount(write: Connection, scope_id: int, ids: list[int]) -> None:
    query = f"SELECT count(*), coalesce(sum(length), 0) FROM chunk_words WHERE chunk_id = {_ANY}"
    count, words = write.exec_driver_sql(query, (ids,)).one()
    write.exec_driver_sql(_COUNT, (scope_id, -count, -words))


def _hits(scope_id: int, terms: Iterable[Term]) -> tuple[str, list[Any]]:
    """A query of term, chunk_id and frequency f of what has any of the terms' spellings."""
    whole: list[str] = []
    parts: list[str] = []
    values: list[Any] = []
    for term in terms:
        for phrase in term.spellings:
            if term.starts:
                parts.append(_START)
                values += [f"{phrase[0]}*", scope_id, phrase[0], phrase[0]]
            elif len(phrase) == 1:
                whole += phrase
            else:
                sql, more = _phrase(scope_id, phrase)
                parts.append(sql)
                values += more
    # Two words of a query may have one spelling: each counts, as in FTS5.
    for again in range(max(map(whole.count, set(whole)), default=0)):
        named = sorted({word for word in whole if whole.count(word) > again})
        parts.append(_WHOLE.replace("word AS term", f"word || ' {again}' AS term"))
        values += [scope_id, named]
    return " UNION ALL ".join(parts), values


def _phrase(scope_id: int, words: Phrase) -> tuple[str, list[Any]]:
    """Words that must follow one another; parts have no places."""
    sql = (
        "SELECT CAST(%s AS text) AS term, chunk_id, CAST(count(*) AS double precision) AS f FROM "
        "(SELECT chunk_id, unnest(positions) AS place FROM postings "
        f"WHERE scope_id = %s AND word = %s) AS first WHERE place > {PART}"
    )
    values: list[Any] = [f"{' '.join(words)} phrase", scope_id, words[0]]
    for distance, word in enumerate(words[1:], 1):
        sql += (
            " AND EXISTS (SELECT 1 FROM postings AS later WHERE scope_id = %s AND word = %s "
            f"AND later.chunk_id = first.chunk_id AND place + {distance} = ANY(positions))"
        )
        values += [scope_id, word]
    return sql + " GROUP BY chunk_id", values


def _counts(words: Searched, terms: Iterable[Term]) -> dict[str, int]:
    """In how many chunks the terms' tokens are."""
    if tokens := uncounted(terms, words.counts):
        query = (
            "SELECT word, count(*) FROM postings WHERE scope_id = %s "
            "AND word = ANY(CAST(%s AS text[])) GROUP BY word"
        )
        found = driver_of(words.connection).execute(query, (words.scope_id, tokens))
        words.counts.update({**dict.fromkeys(tokens, 0), **dict(found.fetchall())})
    return words.counts


def _beginning(words: Searched, start: str) -> list[tuple[str, int]]:
    query = (
        "SELECT word, count(*) FROM postings WHERE scope_id = %s AND starts_with(word, %s) "
        "AND word >= %s GROUP BY word"
    )
    found = driver_of(words.connection).execute(query, (words.scope_id, start, start))
    return list(found.fetchall())
