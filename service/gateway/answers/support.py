"""How far passages support a sentence: the share of its words that stand in them, by weight.

A word weighs the more, the fewer sentences of the passages hold it, because what stands everywhere
tells no passage from another. Words that stand in no passage count against all of them. Of the
words of one passage, those that stand together in one of its sentences count in full, those from
its title and its other sentences in part.

    answer    The tent weighs 3.2 kilograms
    passage   The Corrie 3 | It weighs 3.2 kilograms without pegs. | …
              in part        in full: this is the quote

A sentence ends behind its full stop and at a line break, so that the items of a list are sentences.
Marks behind the full stop, [1], belong to the sentence before them. Known abbreviations, initials
and numbers end none. Words are compared without case, accents and English endings; Chinese,
Japanese and Korean are taken in pairs of characters. 14,300 is one word, 14300.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

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
    """Scores sentences of one answer to a question against its passages, each (title, text)."""

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
