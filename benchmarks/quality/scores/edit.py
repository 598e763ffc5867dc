"""Edit similarity of a line of code, LongBench's score of lcc and repobench-p.

The official code calls fuzzywuzzy's `ratio`, whose result depends on what else is installed. With
python-Levenshtein it is the indel ratio, which is also that of thefuzz, rapidfuzz and
KVCache-Factory, and is computed here. Without, it is difflib's, which is lower and not symmetric
("cadb", "abc": 57 and 29).
"""

from __future__ import annotations


def edit_similarity(text: str, reference: str) -> float:
    """Indel ratio of the text's first line without `, # and //, rounded to a hundredth.

    2 LCS / (length + length), where LCS is the length of the longest common subsequence. Two empty
    lines are equal.
    """
    line = _code(text)
    if line == reference:
        return 1.0
    # In this order, so that halves are rounded as in the original.
    return round(100 * indel_ratio(line, reference)) / 100


def indel_ratio(text: str, other: str) -> float:
    """1 − (insertions and deletions that make one text the other) / length of both.

    Two empty texts are equal.
    """
    length = len(text) + len(other)
    if not length:
        return 1.0
    edits = length - 2 * _common(text, other)
    return 1 - edits / length


def _code(text: str) -> str:
    lines = text.lstrip("\n").split("\n")
    return next((x for x in lines if "`" not in x and "#" not in x and "//" not in x), "")


def _common(a: str, b: str) -> int:
    """Length of the longest common subsequence.

    A row of the table is held in the bits of one integer; a bit of `row` is 0 where the length
    grows by one.

    Source: Hyyrö (2004), Bit-parallel LCS-length computation revisited.
    """
    places: dict[str, int] = {}
    for i, character in enumerate(a):
        places[character] = places.get(character, 0) | 1 << i
    every = (1 << len(a)) - 1
    row = every
    for character in b:
        hit = row & places.get(character, 0)
        row = ((row + hit) | (row - hit)) & every
    return len(a) - row.bit_count()
