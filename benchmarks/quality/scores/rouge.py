"""ROUGE as two packages compute it: `rouge` 1.0.1 (LongBench) and `rouge_score` 0.1.2 (needles).

The two differ in what is a word and a sentence, in counting repeats, and in smoothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from benchmarks.quality.scores.porter import stem

_WORD = re.compile(r"[a-z0-9]+")


def rouge_l(text: str, reference: str) -> float:
    """ROUGE-L's F as `rouge` gives it (`Rouge().get_scores([text], [reference], avg=True)`).

    Sentences end at every full stop, words at white space; case and punctuation count. Let C be
    the distinct words that are in a longest common subsequence of any sentence of the reference
    and any of the text. Then P = |C| / distinct words of the text, R = |C| / distinct words of the
    reference, F = 2PR / (P + R + 1e-8); 0 if either has no sentence. The package fails on sentences
    of about a thousand words, which LongBench counts as 0; here they are scored.
    """
    ours, theirs = _sentences(text), _sentences(reference)
    if not ours or not theirs:
        return 0.0
    common = {word for wanted in theirs for said in ours for word in _common(wanted, said)}
    precision = len(common) / len({word for sentence in ours for word in sentence})
    recall = len(common) / len({word for sentence in theirs for word in sentence})
    return 2 * precision * recall / (precision + recall + 1e-8)


def _sentences(text: str) -> list[list[str]]:
    """Sentences as lists of words; one of only blanks has one empty word, as in the package."""
    return [part.split() or [""] for part in text.split(".") if part]


def _common(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """A longest common subsequence, last word first.

    Of several it is the one that the package finds: it walks back from the ends, in `b` unless that
    would lose a word.
    """
    lengths = [[0] * (len(b) + 1)]  # lengths[i][j]: longest common subsequence of a[:i] and b[:j]
    for x in a:
        above, row = lengths[-1], [0]
        for j, y in enumerate(b):
            row.append(above[j] + 1 if x == y else max(above[j + 1], row[j]))
        lengths.append(row)
    i, j, words = len(a), len(b), list[str]()
    while i and j:
        if a[i - 1] == b[j - 1]:
            i, j = i - 1, j - 1
            words.append(a[i])
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words


def rouge1(text: str, reference: str) -> float:
    """ROUGE-1's F as `rouge_score` gives it with `use_stemmer=True`.

    2PR / (P + R) of the multisets of words. Words are runs of a-z and 0-9 in lower case, stemmed if
    longer than three characters.
    """
    ours, theirs = _stems(text), _stems(reference)
    shared = (Counter(ours) & Counter(theirs)).total()
    return 2 * shared / (len(ours) + len(theirs)) if shared else 0.0


def _stems(text: str) -> list[str]:
    words: list[str] = _WORD.findall(text.lower())
    return [stem(word) if len(word) > 3 else word for word in words]
