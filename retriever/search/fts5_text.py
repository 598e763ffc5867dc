"""Prepares texts and queries for the full-text index (FTS5).

The index splits at spaces and punctuation, folds case and accents, and stems English. In scripts
written without spaces (Chinese, Japanese, Korean), pairs of neighbouring characters become words:

    text   漢字検索   ->  漢字 字検 検索 索        the last character also stands alone, so that
    query  漢字検索   ->  漢字 字検 検索
    query  字         ->  字*                      every character is the start of some word
"""

from __future__ import annotations

import re
import unicodedata

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
