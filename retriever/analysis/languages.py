"""What depends on a text's language: stems, and the words that a compound is made of.

A script often says which language it is; for Latin letters CLD2 guesses it. A guess may be wrong,
above all that of a few words, so a stem carries its language, and a query's words are looked for
under the stems of all languages (`stems`): the guess decides only which of these a text is found
by. Without the language, "coding" would find cod, which is French for code.
"""

from __future__ import annotations

import threading
from functools import cache, lru_cache
from typing import Any, Final

import pycld2
import Stemmer

# English as FTS5 stems it, on which everything that was measured rests. Its stems carry no name.
ENGLISH = "en"
_STEMMERS: Final = {
    ENGLISH: "porter", "de": "german", "fr": "french", "es": "spanish", "it": "italian",
    "pt": "portuguese", "nl": "dutch", "sv": "swedish", "da": "danish", "no": "norwegian",
    "fi": "finnish", "hu": "hungarian", "ro": "romanian", "tr": "turkish", "cs": "czech",
    "pl": "polish",
}  # fmt: skip
LATIN: Final = tuple(_STEMMERS)
LAST_LATIN: Final = "\u024f"
_LEAST_STEMMED = 3
# First character of the script's block, last, and its language.
_SCRIPTS: Final = (
    ("\u0370", "\u03ff", "greek"), ("\u0400", "\u052f", "russian"),
    ("\u0530", "\u058f", "armenian"), ("\u0600", "\u06ff", "arabic"),
    ("\u0900", "\u097f", "hindi"), ("\u0b80", "\u0bff", "tamil"),
)  # fmt: skip
# Hyphenation patterns of languages that write compounds as one word.
COMPOUNDING: Final = {
    "de": "de_DE", "nl": "nl_NL", "sv": "sv_SE", "da": "da_DK", "no": "nb_NO", "hu": "hu_HU",
}  # fmt: skip
LEAST_COMPOUND = 8  # letters
LEAST_PART = 4
MOST_SYLLABLES = 5  # of a part
_GUESSED_FROM = 4000  # characters


def guess(text: str) -> str:
    """The language, of `LATIN`, that stems a text's words in Latin letters."""
    try:
        _, _, found = pycld2.detect(text[:_GUESSED_FROM], isPlainText=True, bestEffort=True)
    except pycld2.error:  # characters that Unicode does not have
        return ENGLISH
    return next((code for _, code, *_ in found if code in _STEMMERS), ENGLISH)


def surely(text: str) -> str:
    """The code of a text's language where CLD2 is sure of it, else an empty one."""
    try:
        reliable, _, found = pycld2.detect(text[:_GUESSED_FROM], isPlainText=True)
    except pycld2.error:
        return ""
    return str(found[0][1]) if reliable else ""


# Stems and parts of so many words are remembered. A passage repeats its own words: thirty times as
# many are hardly faster, and those of a hostile text, which lie all over the memory that it took,
# kept 42 MiB.
WORDS_KEPT = 512


@lru_cache(WORDS_KEPT)
def stem(word: str, language: str) -> str:
    """The stem of a folded word; in Latin letters, that of `language`, whose code it carries."""
    first = word[0]
    if len(word) < _LEAST_STEMMED or any(map(str.isdigit, word)):
        return word
    if first <= LAST_LATIN:
        stemmed = str(_stemmers.of(_STEMMERS[language]).stemWord(word))
        return stemmed if language == ENGLISH else f"{stemmed}\u00b7{language}"
    name = next((name for low, high, name in _SCRIPTS if low <= first <= high), None)
    if name is None:
        return word
    stemmed = str(_stemmers.of(name).stemWord(word))
    # Of a word with an article Arabic's stemmer leaves more than of the word alone.
    return stemmed if name != "arabic" else str(_stemmers.of(name).stemWord(stemmed))


@lru_cache(WORDS_KEPT)
def stems(word: str) -> list[str]:
    """All stems by which texts that have the folded word may be found, without repetitions."""
    if word[0] > LAST_LATIN:  # what Hebrew writes before a word may be there or not
        return [stem(word, ENGLISH), *parts(word, ENGLISH)]
    return list(dict.fromkeys(stem(word, language) for language in LATIN))


@lru_cache(WORDS_KEPT)
def parts(word: str, language: str) -> list[str]:
    """The stems of the words that a folded word may be made of."""
    if "\u05d0" <= word[0] <= "\u05ea":
        return [word[1:]] if word[0] in "והבלמשכ" and len(word) >= LEAST_PART else []
    patterns = COMPOUNDING.get(language)
    if patterns is None or len(word) < LEAST_COMPOUND or not word.isalpha():
        return []
    places = [0, *_hyphenation(patterns).positions(word), len(word)]
    runs = (
        word[start:end]
        for first, start in enumerate(places)
        for end in places[first + 1 : first + 1 + MOST_SYLLABLES]
    )
    return [stem(run, language) for run in runs if LEAST_PART <= len(run) < len(word)]


def versions() -> str:
    """The versions of what decides the stems."""
    import pyphen

    return f"snowball {Stemmer.version()}, cld2 {pycld2.VERSION}, pyphen {pyphen.__version__}"


@cache
def _hyphenation(patterns: str) -> Any:
    import pyphen  # it reads the names of a hundred files

    made = pyphen.Pyphen(lang=patterns, left=3, right=3)
    made.hd.cache = _Nothing()
    return made


class _Nothing(dict[str, Any]):
    """Keeps nothing, in place of a cache of all words that have ever come."""

    def __setitem__(self, word: str, places: Any) -> None:
        pass


class _Stemmers(threading.local):
    """Snowball's stemmers, which one thread at a time may use."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def of(self, language: str) -> Any:
        if (made := self._made.get(language)) is None:
            made = self._made[language] = Stemmer.Stemmer(language, 0)  # keeps no words
        return made


_stemmers = _Stemmers()
