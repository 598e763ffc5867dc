"""How near a text is to another: words as SQuAD compares them, and edits."""

from __future__ import annotations

import re
import string
from collections import Counter

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised_words(text: str) -> list[str]:
    """Words in lower case, without ASCII punctuation and articles, as SQuAD compares them."""
    return _ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def qa_f1(text: str, reference: str) -> float:
    """2PR / (P + R) of the two multisets of words; 0 if they share none."""
    ours, theirs = normalised_words(text), normalised_words(reference)
    shared = (Counter(ours) & Counter(theirs)).total()
    return 2 * shared / (len(ours) + len(theirs)) if shared else 0.0


def indel_ratio(text: str, other: str) -> float:
    """1 − (insertions and deletions that make one text the other) / length of both.

    Two empty texts are equal.
    """
    length = len(text) + len(other)
    if not length:
        return 1.0
    edits = length - 2 * _common(text, other)
    return 1 - edits / length


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
