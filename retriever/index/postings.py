"""Keyword search in PostgreSQL: BM25 over postings, in tables of the catalog.

PostgreSQL's own ranking (ts_rank) knows no frequencies of words in the corpus. So the words of
chunks are rows here, with their positions, and BM25 is computed by a query. Words are found, and
scores computed, as SQLite's FTS5 does it: it splits the texts here, too, in memory.

    score = sum over words of idf · f · (K1 + 1) / (f + K1 · (1 - B + B · length / mean length))
    idf   = ln((N - n + 1/2) / (n + 1/2)), at least 10^-6

`N` counts the scope's chunks, `n` those with the word, `f` how often a chunk has it.

Source:
    FTS5's bm25(), https://www.sqlite.org/fts5.html#the_bm25_function.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

from sqlalchemy import Connection

from retriever.index.full_text import TOKENIZER, ChunkWords, indexed_text, query_words, starts_pair

K1, B, LEAST_IDF = 1.2, 0.75, 1e-6

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
_WHOLE = """
    SELECT word AS term, chunk_id, CAST(cardinality(positions) AS BIGINT) AS f FROM postings
    WHERE scope_id = %s AND word = ANY(CAST(%s AS text[]))
"""
_START = """
    SELECT CAST(%s AS text) AS term, chunk_id, sum(cardinality(positions)) AS f FROM postings
    WHERE scope_id = %s AND starts_with(word, %s) AND word >= %s GROUP BY chunk_id
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
    """Index chunks."""
    lengths: list[tuple[int, int]] = []
    rows: list[tuple[int, int, str]] = []
    for chunk_id, title, text in chunks:
        positions: dict[str, list[int]] = defaultdict(list)
        words = _words(indexed_text(title, text))
        for position, word in enumerate(words):
            positions[word].append(position)
        lengths.append((chunk_id, len(words)))
        rows.append((scope_id, chunk_id, json.dumps(positions)))
    if rows:
        write.exec_driver_sql("INSERT INTO chunk_words VALUES (%s, %s)", lengths)
        write.exec_driver_sql(_ADD, rows)
    count = (scope_id, len(lengths), sum(length for _, length in lengths))
    write.exec_driver_sql(_COUNT, count)


def remove(write: Connection, scope_id: int, chunks: Iterable[ChunkWords]) -> None:
    """Remove chunks before their rows are deleted; their postings go with these."""
    query = (
        "SELECT count(*), coalesce(sum(length), 0) FROM chunk_words "
        "WHERE chunk_id = ANY(CAST(%s AS bigint[]))"
    )
    ids = [chunk_id for chunk_id, *_ in chunks]
    count, words = write.exec_driver_sql(query, (ids,)).one()
    write.exec_driver_sql(_COUNT, (scope_id, -count, -words))


def drop(write: Connection, scope_id: int) -> None:
    """The rows of a scope go with it."""


def purge(write: Connection) -> None:
    """The rows of removed chunks went with them; VACUUM frees their space."""


def search(
    connection: Connection,
    scope_id: int,
    query: str,
    k: int,
    allowed_ids: Collection[int] | None = None,
) -> list[tuple[int, float]]:
    """See FullText.search."""
    whole: list[str] = []
    parts: list[str] = []
    values: list[Any] = []
    for word in query_words(query):
        found = _words(word)
        if starts_pair(word):
            parts.append(_START)
            values += [f"{word}*", scope_id, word, word]
        elif len(found) == 1:
            whole += found
        elif found:
            sql, more = _phrase(scope_id, word, found)
            parts.append(sql)
            values += more
    if whole:
        # Two words of a query may have one stem: each counts, as in FTS5.
        for again in range(max(map(whole.count, whole))):
            named = sorted({word for word in whole if whole.count(word) > again})
            parts.append(_WHOLE.replace("word AS term", f"word || ' {again}' AS term"))
            values += [scope_id, named]
    if not parts or k <= 0:
        return []
    among = ""
    more_values: list[Any] = [scope_id]
    if allowed_ids is not None:
        among = "WHERE chunk_id = ANY(CAST(%s AS bigint[]))"
        more_values.append(list(allowed_ids))
    sql = _SEARCH.format(hits=" UNION ALL ".join(parts), among=among)
    driver: Any = connection.connection.driver_connection  # as Prepared does, and for its reason
    rows = driver.execute(sql, (*values, *more_values, k))
    return [(int(chunk_id), float(score)) for chunk_id, score in rows]


def _phrase(scope_id: int, term: str, words: list[str]) -> tuple[str, list[Any]]:
    """A word that is several for the index, which must follow one another."""
    sql = (
        "SELECT CAST(%s AS text) AS term, chunk_id, count(*) AS f FROM "
        "(SELECT chunk_id, unnest(positions) AS place FROM postings "
        "WHERE scope_id = %s AND word = %s) AS first WHERE true"
    )
    values: list[Any] = [f"{term} phrase", scope_id, words[0]]
    for distance, word in enumerate(words[1:], 1):
        sql += (
            " AND EXISTS (SELECT 1 FROM postings AS later WHERE scope_id = %s AND word = %s "
            f"AND later.chunk_id = first.chunk_id AND place + {distance} = ANY(positions))"
        )
        values += [scope_id, word]
    return sql + " GROUP BY chunk_id", values


class _Splitter(threading.local):
    """FTS5 in memory, one per thread: it only tells which words a text has."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.execute(
            f"CREATE VIRTUAL TABLE texts USING fts5(body, content = '', tokenize = '{TOKENIZER}')"
        )
        self.connection.execute("CREATE VIRTUAL TABLE words USING fts5vocab(texts, 'instance')")


@cache
def _splitter() -> _Splitter:
    return _Splitter()


def _words(text: str) -> list[str]:
    """The words of a text as FTS5 indexes them, in order."""
    memory = _splitter().connection
    memory.execute("INSERT INTO texts (rowid, body) VALUES (1, ?)", (text,))
    found = memory.execute('SELECT term FROM words ORDER BY "offset"').fetchall()
    memory.execute("INSERT INTO texts (texts) VALUES ('delete-all')")
    return [word for (word,) in found]
