"""Finds the sentences of a text, as character spans.

A sentence ends behind its full stop and at a line break, so that the items of a list are sentences.
Marks behind the full stop, [1], belong to the sentence before them.
"Dr. Who" and "3.5" hold none: known abbreviations, initials and numbers end nothing.
"""

from __future__ import annotations

import re

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
    """The spans of all sentences, without the blanks around them."""
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
