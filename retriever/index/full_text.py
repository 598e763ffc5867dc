"""What a full-text index does, and how it prepares texts and queries. Callers hold a transaction.

A chunk's words are committed with the chunk, so this index is never behind, needs no saving and no
rebuild. `bm25` keeps them in SQLite's FTS5, `postings` in tables of PostgreSQL. Both split, fold
and stem alike, and score by the same formula.

Texts are split at spaces and punctuation, case and accents are folded, and English is stemmed. In
scripts written without spaces (Chinese, Japanese, Korean), pairs of neighbouring characters become
words:

    text   漢字検索   ->  漢字 字検 検索 索        the last character also stands alone, so that
    query  漢字検索   ->  漢字 字検 検索
    query  字         ->  字*                      every character is the start of some word
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable
from typing import Protocol

from sqlalchemy import Connection

# chunk_id, title, text
ChunkWords = tuple[int, str, str]


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
        query: str,
        k: int,
        allowed_ids: Collection[int] | None = None,
    ) -> list[tuple[int, float]]:
        """The `k` best chunks that have any of the query's words.

        Any text is a valid query; one without words finds nothing.

        Returns:
            (chunk_id, BM25 score), best first, ties by id.
        """


TOKENIZER = "porter unicode61 remove_diacritics 2"
# Further words of a query are ignored: a document pasted as a question would take seconds.
MAX_QUERY_WORDS = 128

_UNSPACED = re.compile(
    "[\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)


def indexed_text(title: str, text: str) -> str:
    """The text to index for a chunk, with its title: a chunk alone may not name its topic."""
    folded = unicodedata.normalize("NFKC", f"{title}\n{text}")
    return _UNSPACED.sub(lambda run: f" {' '.join([*_pairs(run[0]), run[0][-1]])} ", folded)


def match_expression(query: str) -> str:
    """The query in FTS5's syntax, matching any of its words; empty if it has none.

    The words are quoted, so users cannot write operators.
    """
    return " OR ".join(
        f'"{word}"*' if starts_pair(word) else f'"{word}"' for word in query_words(query)
    )


def query_words(query: str) -> list[str]:
    """The query's distinct words, of letters, digits and marks, which the index may split."""
    folded = unicodedata.normalize("NFKC", query)
    words: list[str] = []
    position = 0
    for run in _UNSPACED.finditer(folded):
        words += [*_words(folded[position : run.start()]), *(_pairs(run[0]) or [run[0]])]
        position = run.end()
    words += _words(folded[position:])
    return list(dict.fromkeys(words))[:MAX_QUERY_WORDS]


def starts_pair(word: str) -> bool:
    """Whether it is a single character of an unspaced script: the start of words of two."""
    return len(word) == 1 and _UNSPACED.match(word) is not None


def _pairs(run: str) -> list[str]:
    return [run[i : i + 2] for i in range(len(run) - 1)]


def _words(text: str) -> list[str]:
    kept = (char if unicodedata.category(char)[0] in "LNM" else " " for char in text)
    return "".join(kept).casefold().split()
