"""Edit similarity of a line of code, LongBench's score of lcc and repobench-p.

The official code calls fuzzywuzzy's `ratio`, which depends on what else is installed: with
python-Levenshtein, as thefuzz, rapidfuzz and KVCache-Factory have it, the indel ratio that is
computed here; without, difflib's, which is lower and not symmetric ("cadb", "abc": 57 and 29).
"""

from __future__ import annotations


def edit_similarity(text: str, reference: str) -> float:
    """2 LCS / (length + length), rounded to a hundredth, of the text's first line without `, # and
    //. LCS: characters of the longest common subsequence; two empty lines are equal."""
    line = _code(text)
    if line == reference:
        return 1.0
    length = len(line) + len(reference)
    edits = length - 2 * _common(line, reference)  # insertions and deletions
    return round(100 * (1 - edits / length)) / 100  # in this order: halves fall as they do there


def _code(text: str) -> str:
    lines = text.lstrip("\n").split("\n")
    return next((x for x in lines if "`" not in x and "#" not in x and "//" not in x), "")


def _common(a: str, b: str) -> int:
    """Length of the longest common subsequence, a row of the table at a time in the bits of one
    integer (Hyyrö 2004): a bit of `row` is 0 where the length grows by one."""
    places: dict[str, int] = {}
    for i, character in enumerate(a):
        places[character] = places.get(character, 0) | 1 << i
    every = (1 << len(a)) - 1
    row = every
    for character in b:
        hit = row & places.get(character, 0)
        row = ((row + hit) | (row - hit)) & every
    return len(a) - row.bit_count()
