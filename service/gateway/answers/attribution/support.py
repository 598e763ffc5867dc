"""How far passages support a sentence: the share of its words that stand in them, by weight.

A word weighs the more, the fewer sentences of the passages hold it, because what stands everywhere
tells no passage from another. Words that stand in no passage count against all of them. Of the
words of one passage, those that stand together in one of its sentences count in full, those from
its title and its other sentences in part.

    answer    The tent weighs 3.2 kilograms
    passage   The Corrie 3 | It weighs 3.2 kilograms without pegs. | …
              in part        in full: this is the quote
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from service.gateway.answers.attribution.sentences import sentences, words

ELSEWHERE = 0.5
"""Weight of a word that stands in the passage, but not in the sentence that is quoted."""
OF_QUESTION = 0.5
"""Weight of a word of the question, which an answer repeats whatever it was read from."""


@dataclass(frozen=True)
class Support:
    """How far one passage supports a sentence."""

    score: float
    quote: range


@dataclass(frozen=True)
class _Source:
    every: frozenset[str]  # words of title and text
    sentences: tuple[tuple[range, frozenset[str]], ...]


class SupportScorer:
    """Scores sentences of one answer against its passages.

    Args:
        passages: (title, text) of each.
        question: What was asked.
    """

    def __init__(self, passages: Sequence[tuple[str, str]], question: str) -> None:
        self._sources = [_source(title, text) for title, text in passages]
        self._question = frozenset(words(question))
        found = [held for source in self._sources for _, held in source.sentences]
        self._holding = Counter(chain.from_iterable(found))
        self._count = len(found)

    def scores(self, sentence: str) -> list[Support]:
        """Return how far each passage supports a sentence, in their order."""
        wanted = {word: self._weight(word) for word in words(sentence)}
        total = sum(wanted.values())
        return [_support(source, wanted, total) for source in self._sources]

    def _weight(self, word: str) -> float:
        weight = _rarity(self._holding[word], self._count)
        return OF_QUESTION * weight if word in self._question else weight


def _rarity(held: int, count: int) -> float:
    """BM25's inverse document frequency of a word that `held` of `count` sentences hold."""
    return math.log(1 + (count - held + 0.5) / (held + 0.5))


@lru_cache(maxsize=512)  # the same passages answer many questions
def _source(title: str, text: str) -> _Source:
    spans = sentences(text) or [range(len(text))]
    found = [(span, frozenset(words(text[span.start : span.stop]))) for span in spans]
    return _Source(frozenset(words(title)).union(*(each for _, each in found)), tuple(found))


def _support(source: _Source, wanted: dict[str, float], total: float) -> Support:
    if not total:
        return Support(0.0, source.sentences[0][0])
    held = sum(weight for word, weight in wanted.items() if word in source.every)
    quote, together = max(
        (
            (span, sum(weight for word, weight in wanted.items() if word in found))
            for span, found in source.sentences
        ),
        key=lambda each: each[1],
    )
    return Support((together + ELSEWHERE * (held - together)) / total, quote)
