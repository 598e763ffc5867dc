"""Finds the sentences of a text, as character spans, and their words.

A sentence ends behind its full stop and at a line break, so that the items of a list are sentences.
Marks behind the full stop, [1], belong to the sentence before them.
"Dr. Who" and "3.5" hold none: known abbreviations, initials and numbers end nothing.

Words are compared without case, accents and English endings. Chinese, Japanese and Korean, which
have no spaces, are taken in pairs of characters. A number is one word, without its commas: 14,300
is 14300.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# Every quantifier is possessive, so that the time is linear in the text's length.
_MARKS = r"(?:[ ]?+\[\d[\d, ]*+\])*+"
_END = re.compile(
    r"(?<![.!?\u2026])[.!?\u2026]++[\"'\u201d\u2019)\]]*+"
    rf"{_MARKS}(?=\s|$)"
    rf"|[\u3002\uff01\uff1f\uff61]++[\u300d\u300f\u201d\u2019\uff09)]*+{_MARKS}"
    r"|[\r\n]++"
)
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:Mrs?|Ms|Dr|St|Prof|Sr|Jr|No|vs|e\.g|i\.e|cf|approx|[A-Z])$"
)
_LONGEST_ABBREVIATION = 8


def sentences(text: str) -> list[range]:
    """Return the spans of all sentences, without the blanks around them."""
    out: list[range] = []
    start = 0
    for end in _END.finditer(text):
        before = text[max(start, end.start() - _LONGEST_ABBREVIATION) : end.start()]
        if end.group()[0] == "." and _ABBREVIATION.search(before) and end.end() < len(text):
            continue
        _add(out, text, start, end.end())
        start = end.end()
    _add(out, text, start, len(text))
    return out


def _add(out: list[range], text: str, start: int, end: int) -> None:
    piece = text[start:end]
    stripped = piece.strip()
    if any(char.isalnum() for char in stripped):
        first = start + len(piece) - len(piece.lstrip())
        out.append(range(first, first + len(stripped)))


_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"\d[\d.,]*\d|[{_CJK}]+|[^\W{_CJK}]+")
_IS_CJK = re.compile(f"[{_CJK}]")
_COMMA_OF_THOUSANDS = re.compile(r",(?=\d{3}(?!\d))")
_ENDINGS = ("ies", "ing", "ed", "es", "s")
_SHORTEST_STEM = 3


def words(text: str) -> list[str]:
    """Return all words, in order."""
    out: list[str] = []
    for match in _WORD.finditer(unicodedata.normalize("NFKC", text).casefold()):
        word = match.group()
        if word[0].isdigit():
            out.append(_COMMA_OF_THOUSANDS.sub("", word))
        elif _IS_CJK.match(word):
            out += [word[i : i + 2] for i in range(max(1, len(word) - 1))]
        else:
            out.append(_stem(word))
    return out


@lru_cache(2048)  # thirty times as many are hardly faster
def _stem(word: str) -> str:
    """Return a word without accents and its ending; no linguistics: both texts lose the same."""
    decomposed = unicodedata.normalize("NFD", word)
    word = "".join(char for char in decomposed if not unicodedata.combining(char))
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            word = word.removesuffix(ending)
            break
    return word.removesuffix("e") if len(word) > _SHORTEST_STEM else word
