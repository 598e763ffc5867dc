"""The one analyser: what is stored and what is asked get their words here, for every database.

    text    fold ── cut ── stem in the text's language ── words, one per place
                                                       └─ parts: of compounds, identifiers as one
    query   fold ── cut ── stem in every language ────── terms, each with its spellings
                                                       └─ exact: identifiers, quoted phrases

Texts are cut at everything but letters, digits and marks. Scripts without spaces:

    漢字検索   ->  漢字 字検 検索 索     pairs of neighbours (Chinese, Japanese, Korean). The last
    query 字   ->  字*                   stands alone, so that each is the start of some word.
    ข้าวเช้า     ->  ข้าว เช้า              words by ICU's dictionaries (Thai, Lao, Khmer, Burmese), and
                                        runs of three letters as parts: dictionaries disagree with
                                        themselves where the words around differ

`REVISION` names all this with the versions of its libraries. An index of another revision is
made anew.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise, repeat

import icu4py
from icu4py.breakers import WordBreaker

from kvstitch.retriever.analysis import languages
from kvstitch.retriever.analysis.spelling import APART, Characters, clean, fold, identifiers

_RULES = 1  # count it up with every change of the code that changes a word
REVISION = hashlib.sha256(
    f"{_RULES}, icu {icu4py.icu_version}, unicode {unicodedata.unidata_version}, "
    f"{languages.versions()}".encode()
).hexdigest()[:8]

# Of a longer question the rarest words are searched for, and its last ones, which often ask.
MAX_QUERY_WORDS = 128
LAST_WORDS = 32
# A query of so many words is looked for as a phrase, too.
PHRASE_WORDS = 8
MAX_EXACT = 16

_PAIRED = re.compile(
    "[\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)
_BY_DICTIONARY = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f]+")
_UNSPACED = re.compile(f"({_PAIRED.pattern})|({_BY_DICTIONARY.pattern})")
_RUN = 3
_PIECE = re.compile(r"[^\W\d_]+|\d+")
_QUOTED = re.compile(
    r'["\u201c-\u201f\u00ab\u00bb]([^"\u201c-\u201f\u00ab\u00bb]+)["\u201c-\u201f\u00ab\u00bb]'
    r"|[\u300c\u300e]([^\u300c-\u300f]+)[\u300d\u300f]"
)
# It always matches, so a text is read once, however long its sentences are.
_SENTENCE = re.compile("[^.!?\u2026\u3002\uff01\uff1f\u061f\u037e\n]+[?\uff1f\u061f\u037e]?")
_ASKS = ("?", "\uff1f", "\u061f", "\u037e")
_UMLAUT = re.compile(r"(?<![aeiouq])([aou])(?:e|(?<=a)a)")
_WRITTEN_OUT = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ø": "oe", "å": "aa", "æ": "ae"})

# Names of numbered things: of laws above all. "Season 5" is of many shows, so it is none.
_NUMBERED = frozenset({
    "art", "artikel", "article", "articles", "articulo", "articolo", "artigo", "section",
    "sections", "sec", "abschnitt", "clause", "klausel", "ziffer", "chapter", "kapitel",
    "paragraph", "para", "absatz", "abs", "rule", "regel", "regulation", "directive", "schedule",
    "annex", "appendix", "anhang", "error", "fehler", "erreur", "code", "статья", "пункт", "αρθρο",
})  # fmt: skip

Phrase = tuple[str, ...]


@dataclass(frozen=True)
class AnalysedText:
    """What a text is found by: words, one per place, and further tokens, in no place."""

    words: list[str]
    parts: list[str]

    @property
    def joined(self) -> tuple[str, str]:
        """Words and parts, each with blanks between."""
        return " ".join(self.words), " ".join(self.parts)


@dataclass(frozen=True)
class Term:
    """A word or phrase of a query: what texts may have for it. `starts`: tokens that begin so
    count, too."""

    spellings: tuple[Phrase, ...]
    starts: bool = False

    @property
    def is_phrase(self) -> bool:
        return len(self.spellings[-1]) > 1

    @property
    def preferred(self) -> list[Term]:
        """The term as single tokens, and as phrases, where it has both."""
        alone = tuple(phrase for phrase in self.spellings if len(phrase) == 1)
        phrases = tuple(phrase for phrase in self.spellings if len(phrase) > 1)
        return [Term(spellings, self.starts) for spellings in (alone, phrases) if spellings]


@dataclass(frozen=True)
class AnalysedQuery:
    """What a query asks for: its words and phrases, those of its last words, which often ask, and
    what passages should hold just so.

    `exact` has identifiers, and what is in quotation marks. Of one that has both, phrases count
    only if nothing has the single token.
    """

    terms: list[Term]
    exact: list[Term]
    last: frozenset[Term] = frozenset()


def analyse_text(title: str, text: str) -> AnalysedText:
    """The words of a chunk, with its title: a chunk alone may not name its topic."""
    folded = fold(f"{title}\n{text}")
    plain = folded.translate(_SPACED)
    language = languages.guess(clean(f"{title} {text}").translate(_SPACED))
    words: list[str] = []
    parts: list[str] = []
    for word, is_cut in _cut(plain, last=True):
        if is_cut:
            words.append(word)
        else:
            words.append(languages.stem(word, language))
            parts += languages.parts(word, language)
    parts += _runs(plain)
    parts += identifiers(folded)
    there = set(words)
    return AnalysedText(words, [part for part in dict.fromkeys(parts) if part not in there])


def analyse_query(query: str) -> AnalysedQuery:
    """The words of a query, in the spellings that texts may have them in; it may have none."""
    cleaned, folded = clean(query), fold(query)
    own = [
        Term(((word,),), starts=len(word) == 1 and _PAIRED.match(word) is not None)
        if is_cut
        else Term(tuple((spelling,) for spelling in languages.stems(word)))
        for word, is_cut in _cut(folded.translate(_SPACED), last=False)
    ]
    terms = dict.fromkeys(own)
    known = {phrase for term in terms for phrase in term.spellings}
    for more in _further_tokens(cleaned, folded):
        if new := tuple(dict.fromkeys((s,) for s in more if (s,) not in known)):
            terms[Term(new)] = None
            known.update(new)
    exact = list(dict.fromkeys(_exact(cleaned, folded)))[:MAX_EXACT]
    phrases = [*(term for term in exact if term.is_phrase), *_words_with_numbers(folded)]
    last = frozenset(own[-LAST_WORDS:])
    return AnalysedQuery([*terms, *dict.fromkeys(phrases)], exact, last)


def plain_words(text: str) -> Iterator[str]:
    """The words of a text, folded, before they are stemmed."""
    return (word for word, _ in _cut(fold(text).translate(_SPACED), last=True))


def question_of(text: str) -> str | None:
    """Return what the end of a long query asks, None where the query is short or asks nothing
    there."""
    words = text.split()
    if len(words) <= MAX_QUERY_WORDS:
        return None
    sentences = (part.strip() for part in _SENTENCE.findall(text))
    asked = [part for part in sentences if part.endswith(_ASKS) and len(part) > 4][-2:]
    return " ".join(asked) or " ".join(words[-LAST_WORDS:])


def _further_tokens(cleaned: str, folded: str) -> Iterator[Iterable[str]]:
    """What texts may have, as words or parts, for the words of a query."""
    plain = folded.translate(_SPACED)
    # ü where texts have ue, å where they have aa, and the other way round.
    for word in fold(cleaned.lower().translate(_WRITTEN_OUT)).translate(_SPACED).split():
        if word[0] <= "\u024f":
            yield languages.stems(word)
            if (without := _UMLAUT.sub(r"\1", word)) != word:
                yield languages.stems(without)
    yield from ((run,) for run in _runs(plain))
    yield from ((name,) for name in identifiers(folded))
    language = languages.guess(cleaned.translate(_SPACED))
    for word in plain.split():
        yield from ((part,) for part in languages.parts(word, language))


def _exact(cleaned: str, folded: str) -> Iterator[Term]:
    for match in _QUOTED.finditer(cleaned):
        if phrases := _phrases(fold(match[1] or match[2])):
            yield Term(phrases)
    for name in identifiers(folded):
        pieces = " ".join(_PIECE.findall(name))
        yield Term(((name,), *(p for p in _phrases(pieces) if len(p) > 1)))
    for letters, number in APART.findall(cleaned):
        joined = identifiers(fold(f"{letters}-{number}"))
        yield Term((*((name,) for name in joined), *_phrases(fold(f"{letters} {number}"))))
    plain = folded.translate(_SPACED).split()
    for run in _numbered_names(plain):
        yield Term(_phrases(run))
    if 0 < len(plain) <= PHRASE_WORDS:
        is_number = len(plain) == 1 and any(map(str.isdigit, folded))
        if (phrases := _phrases(folded)) and (is_number or len(phrases[0]) > 1):
            yield Term(phrases)


def _words_with_numbers(folded: str) -> Iterator[Term]:
    """Yield neighbours as "gauge 7", which many passages hold apart and few together."""
    pairs = pairwise(folded.translate(_SPACED).split())
    named = (f"{word} {n}" for word, n in pairs if word.isalpha() and n[0].isdigit())
    return (Term(_phrases(each)) for each in islice(named, MAX_EXACT))


def _numbered_names(words: list[str]) -> Iterator[str]:
    """Yield runs of names with numbers, as Art. 6 Abs. 1 or season 5 episode 3."""
    start = 0
    while start < len(words):
        end = start
        while end + 1 < len(words) and words[end].isalpha() and words[end + 1][0].isdigit():
            end += 2
        named = end > start and words[start] in _NUMBERED
        if end - start > 2 or named:
            yield " ".join(words[start if named else start + 1 : end])
        start = max(end, start + 1)


def _phrases(folded: str) -> tuple[Phrase, ...]:
    """The words of a text in their order, as each language stems them."""
    cut = list(_cut(folded.translate(_SPACED), last=True))
    if not cut:
        return ()
    if len(cut) > 1 and _PAIRED.fullmatch(cut[-1][0]) and cut[-2][0].endswith(cut[-1][0]):
        del cut[-1]  # in a text it may be the first of another pair
    words = (
        repeat(word) if is_cut else [languages.stem(word, each) for each in languages.LATIN]
        for word, is_cut in cut
    )
    made = zip(languages.LATIN, *words, strict=False)
    return tuple(dict.fromkeys(phrase[1:] for phrase in made))


def _cut(plain: str, *, last: bool) -> Iterator[tuple[str, bool]]:
    """Yield words of a folded text without punctuation, and whether to leave them unstemmed."""
    for spaced in plain.split():
        if spaced.isascii() or not _UNSPACED.search(spaced):
            yield spaced, False
            continue
        position = 0
        for run in _UNSPACED.finditer(spaced):
            if run.start() > position:
                yield spaced[position : run.start()], False
            if run[1]:
                pairs = [run[1][i : i + 2] for i in range(len(run[1]) - 1)]
                yield from ((pair, True) for pair in pairs)
                if last or not pairs:
                    yield run[1][-1], True
            else:
                yield from ((word, True) for word in WordBreaker(run[2], "en") if word.strip())
            position = run.end()
        if position < len(spaced):
            yield spaced[position:], False


def _runs(plain: str) -> Iterator[str]:
    """Three neighbouring letters, each with its marks, at every place that is cut by dictionary."""
    for match in _BY_DICTIONARY.finditer(plain):
        letters: list[str] = []
        for char in match[0]:
            if letters and unicodedata.category(char)[0] == "M":
                letters[-1] += char
            else:
                letters.append(char)
        for start in range(len(letters) - _RUN + 1):
            # Marked, so that a run is no word.
            yield "\u00b7" + "".join(letters[start : start + _RUN])


# Blanks in place of everything but letters, digits and marks.
_SPACED = Characters(lambda char: char if unicodedata.category(char)[0] in "LNM" else " ")
