"""F1 of words as SQuAD and LongBench define it."""

from __future__ import annotations

import re
import string
from collections import Counter

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def qa_f1(text: str, reference: str) -> float:
    """2PR / (P + R) of the two multisets of words; 0 if they share none.

    The text is put into lower case, then ASCII punctuation and then articles are dropped, and it is
    split at white space: "don't" is one word, "the" is dropped and "the's" stays.
    """
    ours, theirs = normalised_words(text), normalised_words(reference)
    shared = (Counter(ours) & Counter(theirs)).total()
    # 2PR / (P + R) with P = shared / ours and R = shared / theirs.
    return 2 * shared / (len(ours) + len(theirs)) if shared else 0.0


def normalised_words(text: str) -> list[str]:
    """Words in lower case, without ASCII punctuation and articles, as SQuAD compares them."""
    return _ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()
