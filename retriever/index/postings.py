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

from retriever.index.full_text import TOKENIZER, ChunkWords, indexed_text, query_words, starts_pair
from retriever.sql.connection import Connection

TABLES = """
CREATE TABLE scope_words (
    scope_id BIGINT PRIMARY KEY REFERENCES scopes ON DELETE CASCADE,
    chunks BIGINT NOT NULL, words BIGINT NOT NULL
);
CREATE TABLE chunk_words (
    chunk_id BIGINT PRIMARY KEY REFERENCES chunks ON DELETE CASCADE,
    length INTEGER NOT NULL
);
CREATE TABLE postings (
    scope_id BIGINT NOT NULL, word TEXT COLLATE "C" NOT NULL,
    chunk_id BIGINT NOT NULL REFERENCES chunks ON DELETE CASCADE,
    positions INTEGER[] NOT NULL,
    PRIMARY KEY (scope_id, word, chunk_id)
);
CREATE INDEX postings_by_chunk ON postings (chunk_id);
"""
K1, B, LEAST_IDF = 1.2, 0.75, 1e-6

_COUNT = """
    INSERT INTO scope_words VALUES (?, ?, ?) ON CONFLICT (scope_id) DO UPDATE
    SET chunks = scope_words.chunks + excluded.chunks, words = scope_words.words + excluded.words
"""
_ADD = """
    INSERT INTO postings
    SELECT ?, found.key, ?, ARRAY(
        SELECT CAST(position AS INTEGER) FROM jsonb_array_elements_text(found.value) AS position)
    FROM jsonb_each(CAST(? AS jsonb)) AS found
"""
_WHOLE = """
    SELECT word AS term, chunk_id, CAST(cardinality(positions) AS BIGINT) AS f FROM postings
    WHERE scope_id = ? AND word = ANY(CAST(? AS text[]))
"""
_START = """
    SELECT CAST(? AS text) AS term, chunk_id, sum(cardinality(positions)) AS f FROM postings
    WHERE scope_id = ? AND starts_with(word, ?) AND word >= ? GROUP BY chunk_id
"""
_SEARCH = f"""
    WITH hits AS ({{hits}}),
    rare AS (
        SELECT term, greatest(ln((chunks - n + 0.5) / (n + 0.5)), {LEAST_IDF}) AS idf,
               CAST(words AS double precision) / chunks AS mean
        FROM (SELECT term, CAST(count(*) AS double precision) AS n FROM hits GROUP BY term) AS t,
             scope_words WHERE scope_id = ?
    )
    SELECT chunk_id, sum(
        idf * f * ({K1} + 1) / (f + {K1} * (1 - {B} + {B} * length / mean)) ORDER BY term
    ) AS score
    FROM hits JOIN rare USING (term) JOIN chunk_words USING (chunk_id) {{among}}
    GROUP BY chunk_id ORDER BY score DESC, chunk_id LIMIT ?
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
    write.executemany("INSERT INTO chunk_words VALUES (?, ?)", lengths)
    write.executemany(_ADD, rows)
    write.execute(_COUNT, (scope_id, len(lengths), sum(length for _, length in lengths)))


def remove(write: Connection, scope_id: int, chunks: Iterable[ChunkWords]) -> None:
    """Remove chunks before their rows are deleted; their postings go with these."""
    row = write.execute(
        f"SELECT count(*) AS chunks, coalesce(sum(length), 0) AS words FROM chunk_words "
        f"WHERE chunk_id {write.in_numbers}",
        (write.listed([chunk_id for chunk_id, *_ in chunks]),),
    ).fetchone()
    write.execute(_COUNT, (scope_id, -row["chunks"], -row["words"]))


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
    """The `k` best chunks that have any of the query's words."""
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
        among = f"WHERE chunk_id {connection.in_numbers}"
        more_values.append(connection.listed(allowed_ids))
    sql = _SEARCH.format(hits=" UNION ALL ".join(parts), among=among)
    rows = connection.execute(sql, (*values, *more_values, k))
    return [(int(row["chunk_id"]), float(row["score"])) for row in rows]


def _phrase(scope_id: int, term: str, words: list[str]) -> tuple[str, list[Any]]:
    """A word that is several for the index, which must follow one another."""
    sql = (
        "SELECT CAST(? AS text) AS term, chunk_id, count(*) AS f FROM "
        "(SELECT chunk_id, unnest(positions) AS place FROM postings "
        "WHERE scope_id = ? AND word = ?) AS first WHERE true"
    )
    values: list[Any] = [f"{term} phrase", scope_id, words[0]]
    for distance, word in enumerate(words[1:], 1):
        sql += (
            " AND EXISTS (SELECT 1 FROM postings AS later WHERE scope_id = ? AND word = ? "
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
