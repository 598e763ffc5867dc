"""Whether what a search has found is about the question: a number from 0 to 1, without a model.

The best passage of a question that nothing answers ranks first, too, so ranks say nothing. What
does: the share of the question's words, by rarity, that one passage holds, how near the nearest
passage is (cosine), and how it stands out. A logistic function of these was fitted on questions
with and without an answer, for two embedders and, without cosines, for any other
(`python -m benchmarks.retrieval.floor`; docs/retrieval.md#nothing-found has the figures).

Words that only make a sentence a question (which, wie, combien) count for nothing: in technical
texts they are as rare as names. A question in another language than the passages is not judged:
they share no words, and only the embedder knows.
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from kvstitch.retriever.analysis import languages
from kvstitch.retriever.analysis.analyser import Term, analyse_query, plain_words
from kvstitch.retriever.analysis.spelling import one_letter_apart
from kvstitch.retriever.documents import Passage
from kvstitch.retriever.search import MOST_OF_A_WORD

FLOOR: Final = 0.5
"""Passages of a lower relevance are not about the question."""


class Evidence(NamedTuple):
    """What speaks for it that passages are about a question; each from 0 to about 1."""

    held: float  # share of the question's words in the passage that holds most
    matched: float | None  # BM25 of the best passage, of what a passage of only these words has
    cosine: float | None  # of the nearest passage
    lead: float | None  # of it before the mean of the others

    @property
    def terms(self) -> tuple[float, ...]:
        """What a `Fit` has weights of."""
        held, matched, cosine = self.held, min(1.0, self.matched or 0.0), self.cosine or 0.0
        return 1.0, held, matched, cosine, self.lead or 0.0, held * cosine, held**2


Fit = tuple[float, float, float, float, float, float, float]
"""Weights of a logistic function of `Evidence.terms`, which is FLOOR where the floor is."""
WORDS: Final[Fit] = (-3.201, 11.311, 0.0, 0.0, 0.0, 0.0, -2.666)
"""Of any embedder that is not in FITS: by words alone."""
FITS: Final[Mapping[str, tuple[Fit, Fit]]] = {
    "all-MiniLM-L6-v2": (
        (-6.236, 6.355, 1.017, 5.676, 6.772, 0.0, 0.0),
        (-7.518, 9.35, 0.0, 10.238, 0.0, -4.652, 0.0),
    ),
    "multilingual-e5-small": (
        (-19.195, 7.382, 2.865, 17.3, 33.441, 0.0, 0.0),
        (-21.754, -1.393, 0.0, 22.902, 0.0, 10.886, 0.0),
    ),
}
"""By the embedder's name: with all evidence, and without what one passage alone, or a search by
meaning alone, does not have."""
_DIGEST = re.compile(r"-[0-9a-f]{12}\Z")  # behind the name of a folder that was fetched


def fits_of(embedder: str) -> tuple[Fit, Fit] | None:
    return FITS.get(_DIGEST.sub("", embedder))


def relevance(found: Evidence, embedder: str) -> float:
    """Return how far passages are about a question; below `FLOOR` they are not."""
    if (fits := fits_of(embedder)) is None or found.cosine is None:
        return logistic(WORDS, found)
    whole, part = fits
    return logistic(part if found.matched is None or found.lead is None else whole, found)


def logistic(fit: Fit, found: Evidence) -> float:
    return 1 / (1 + math.exp(-sum(map(operator.mul, fit, found.terms))))


def weighty_words(question: str) -> list[Term]:
    """Return the words of a question that say what it is about; all, if none does."""
    own = analyse_query(question).last
    return [term for term in own if term not in _function_words()] or list(own)


def evidence(
    question: str, rarity: Mapping[Term, float], passages: Sequence[Passage]
) -> Evidence | None:
    """Gather what is known of passages, and of the words of a question; None: it is in another
    language than they are, or has no words."""
    texts = [_words(p.chunk.title, p.chunk.heading or "", p.chunk.text) for p in passages]
    spoken, languages_found = languages.surely(question), {words.spoken for words in texts}
    total = sum(rarity.values())
    if not total or (spoken and "" not in languages_found and spoken not in languages_found):
        return None
    cosines = [p.dense_score for p in passages if p.dense_score is not None]
    matches = [p.sparse_score for p in passages if p.sparse_score is not None]
    nearest = max(cosines, default=None)
    lead = None
    if nearest is not None and len(cosines) > 1:
        lead = nearest - (sum(cosines) - nearest) / (len(cosines) - 1)
    return Evidence(
        held=max(sum(rarity[term] for term in rarity if each.hold(term)) for each in texts) / total,
        matched=max(matches) / (MOST_OF_A_WORD * total) if matches else None,
        cosine=nearest,
        lead=lead,
    )


_ALIKE = 1  # characters that a word, its stem and most misspellings begin with
_LEAST_PART = 5  # characters of a stem that is looked for within compounds


@dataclass(frozen=True)
class _Words:
    """The words of a passage, folded: those in Latin letters by their first characters."""

    others: frozenset[str]  # stems of words in other scripts, whose beginnings may be cut off, too
    by_start: Mapping[str, Sequence[str]]
    compounds: str  # its long words, where its language writes compounds as one word
    language: str  # that stems them
    spoken: str  # that is sure; empty: none is

    def hold(self, term: Term) -> bool:
        """Return whether a word of the passage, or a part of a compound, is the term's."""
        spellings = {phrase[0] for phrase in term.spellings}
        if not self.others.isdisjoint(spellings):
            return True
        if term.starts:
            return any(word.startswith(tuple(spellings)) for word in self.others)
        starts = {spelling[:_ALIKE] for spelling in spellings}
        words = (word for start in starts for word in self.by_start.get(start, ()))
        stems = {languages.stem(word, self.language) for word in words}
        if not stems.isdisjoint(spellings):
            return True
        asked = [spelling for spelling in map(_bare, spellings) if len(spelling) >= _LEAST_PART]
        return any(stem in self.compounds for stem in asked) or any(
            one_letter_apart(one, _bare(other)) for one in asked for other in stems
        )


def _bare(stem: str) -> str:
    """A stem without its language."""
    return stem.partition("\u00b7")[0]


@lru_cache(512)  # the same passages answer many questions
def _words(title: str, heading: str, text: str) -> _Words:
    whole = f"{title}\n{heading}\n{text}"
    language, by_start = languages.guess(whole), defaultdict(list)
    words = set(plain_words(whole))
    others = {word for word in words if word[0] > languages.LAST_LATIN}
    for word in words - others:
        by_start[word[:_ALIKE]].append(word)
    compounding = language in languages.COMPOUNDING
    long = (word for word in words if len(word) >= languages.LEAST_COMPOUND)
    compounds = " ".join(long) if compounding else ""
    stems = frozenset(stem for word in others for stem in languages.stems(word))
    return _Words(stems, by_start, compounds, language, languages.surely(whole))


@cache
def _function_words() -> frozenset[Term]:
    listed = Path(__file__).with_name("function_words.txt").read_text(encoding="utf-8")
    words = (analyse_query(word).last for word in listed.split())
    return frozenset().union(*words)
