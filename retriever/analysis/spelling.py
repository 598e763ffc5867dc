"""Spellings that readers take for the same become the same, in texts and in queries alike.

`clean` leaves out what nobody sees (soft hyphens, zero-width characters, tatweel); the embedder
reads that. `fold` goes further, for the index of words: case, accents, points and marks, digits,
and letters that one keyboard has for another's:

    Maßnahme -> massnahme    Αθήνας -> αθηνασ    учёт -> учет    Łódź -> lodz    المَدْرَسَةِ -> المدرسه

Marks that tell words apart stay: vowels of Hindi and Thai, voicing marks of Japanese, и and й.

Names made of digits (part numbers, versions, dates, addresses, paragraphs of laws) cut into words
are all alike (2024-05-03 has the words of 2024-03-05), so each also gets a token of its own. What
is between letters and digits does not count, what is between digits counts as one sign:

    PPR-9087, PPR 9087, ppr9087 -> ppr9087    2024/05/03 -> 2024·05·03    § 12a -> §12a
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

ZERO_WIDTH_NON_JOINER, ZERO_WIDTH_JOINER = 0x200C, 0x200D
_TATWEEL = 0x0640
# Not "Cf" as such: it has signs of Arabic and Syriac that are seen.
_INVISIBLE = [
    0x00AD, 0x034F, 0x061C, _TATWEEL, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180E, 0xFEFF,
    *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), *range(0xFE00, 0xFE10),
    *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE01F0),
]  # fmt: skip
_UNSEEN = dict.fromkeys(_INVISIBLE)
# A model may know words by their joiners, and emoji are joined by them.
_UNSEEN_BY_MODELS: dict[int, str | None] = {
    code: None for code in _UNSEEN if code not in (ZERO_WIDTH_NON_JOINER, ZERO_WIDTH_JOINER)
}

# Letters of Arabic, Persian, Urdu and Kurdish that are typed for one another.
_ARABIC = str.maketrans("ٱىیےکھہەة", "ايييكهههه")
_LATIN = {"æ": "ae", "œ": "oe", "ð": "d", "þ": "th", "ı": "i", "ŋ": "n", "ĸ": "k", "ə": "e",
          "ȷ": "j", "ĳ": "ij", "ɑ": "a"}  # fmt: skip
_STRUCK = re.compile(r"LATIN SMALL LETTER ([A-Z]) WITH ")
# Hindi writes a nasal before a consonant as a letter or as a dot: हिन्दी, हिंदी.
_NASAL = re.compile("[\u0919\u091e\u0923\u0928\u092e]\u094d(?=[\u0915-\u0939])")


def clean(text: str) -> str:
    """Compose and unify characters (NFKC), and leave out those that nobody sees."""
    composed = unicodedata.normalize("NFKC", text.translate(_UNSEEN_BY_MODELS))
    # As the Swiss write: of 12 questions for a word with ß the embedder finds 9, and 11 with ss.
    return composed.replace("ß", "ss").replace("ẞ", "SS")


def fold(text: str) -> str:
    """The text in the spelling of the index; punctuation stays."""
    if text.isascii():
        return text.lower()
    lowered = unicodedata.normalize("NFKC", text.translate(_UNSEEN)).casefold()
    folded = unicodedata.normalize("NFC", lowered).translate(_FOLDED)
    return _NASAL.sub("\u0902", folded)


CHARACTERS_KEPT = 1 << 14  # of which is remembered what becomes of them; noise has a million


class Characters(dict[int, str | None]):
    """What each character becomes (None: nothing), found out when it first occurs."""

    def __init__(self, becomes: Callable[[str], str | None]) -> None:
        self._becomes = becomes

    def __missing__(self, code: int) -> str | None:
        found = self._becomes(chr(code))
        if len(self) < CHARACTERS_KEPT:
            self[code] = found
        return found


def _fold_char(char: str) -> str | None:
    category = unicodedata.category(char)
    if category == "Nd":
        return str(unicodedata.digit(char))
    if category in ("Mn", "Me"):
        return None if _is_accent(char) else _BINDU.get(char, char)
    if category[0] != "L":
        return char
    if char in _LATIN:
        return _LATIN[char]
    base, *marks = list(unicodedata.normalize("NFD", char))
    if marks and all(map(_is_accent, marks)) and not _is_letter_of_its_own(base, marks):
        return _fold_char(base)
    if struck := _STRUCK.match(unicodedata.name(char, "")):
        return struck[1].lower()
    return char.translate(_ARABIC)


_FOLDED = Characters(_fold_char)

_BINDU = {"\u0901": "\u0902"}  # of Hindi's two signs of a nasal vowel many write one


def _is_accent(mark: str) -> bool:
    """Whether words are told apart without this mark: not so in Indic scripts, Thai or Kana."""
    name = unicodedata.name(mark, "")
    return (
        "\u0300" <= mark <= "\u036f"
        or "\u0483" <= mark <= "\u0489"
        or "\u0591" <= mark <= "\u05c7"  # points and accents of Hebrew
        or (
            name.startswith(("ARABIC", "SYRIAC", "COMBINING"))
            and not name.startswith("COMBINING KATAKANA")
        )
        or name.endswith("SIGN NUKTA")
    )


def _is_letter_of_its_own(base: str, marks: list[str]) -> bool:
    """й, ў, ї are no и, у, і with an accent; ё is written е by most."""
    return "\u0400" <= base <= "\u04ff" and (marks == ["\u0306"] or base == "і")


def one_letter_apart(one: str, other: str) -> bool:
    """Return whether two words differ by one letter, or by two neighbours that changed places."""
    if abs(len(one) - len(other)) > 1:
        return False
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    return max(len(one), len(other)) <= 1 or (len(one) == 2 and one == other[::-1])


SEPARATOR = "\u00b7"
_ALNUM = r"[^\W_]"
# What joins the parts of a name; brackets count where they close again, as in 6(1)(f).
_JOIN = r"(?:[-._/:+#\u2010-\u2015\u2212]|(?=\(\w{1,4}\))\(|\)(?=[-._/:(]|\w)|\)\()"
_NAME = re.compile(rf"{_ALNUM}+(?:{_JOIN}{_ALNUM}+)*+")
_PARAGRAPH = re.compile(r"\u00a7+\s*(\d+[a-z]?)\b")
# 第12条, 제12조: an article, chapter, item, number, … of a law.
_ARTICLE = re.compile(
    r"[\u7b2c\uc81c]\s*\d+\s*"
    r"[\u6761\u689d\u7ae0\u9805\u9879\u53f7\u865f\u7bc0\u8282\u6b3e\uc870\ud56d]"
)
# Chinese, Japanese, Korean, Thai, … follow a name without a blank.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u9fff\uac00-\ud7af\uf900-\ufaff]+"
)
_BETWEEN = re.compile(r"(?<=\d)[^a-z0-9]+(?=\d)")
_SIGNS = re.compile(r"[^\w\u00b7]|_")
_QUANTITY = re.compile(r"\d+[a-z]{1,3}")  # 5th, 20kg, 1990s
_SHORT = re.compile(r"[^\W\d_]+\d")  # u2, ww1, mp3: words of their own
_WITH_A_WORD = re.compile(r"\d.*\W[^\W\d_]{3,}")  # 19-year-old, 12-inch
_WORD_BEHIND = re.compile(r"(.*\d)[^\w/][^\W\d_]{4,}")  # PPR-9087-Ventil
_VERSION = re.compile(r"v(?=\d+\.)")
# Capitals before a number, as in PPR 9087 or ISO 9001, of a query that is not folded.
APART = re.compile(r"\b([A-Z]{2,6}) (\d[\w.-]*\w|\d)\b")
LEAST_DIGITS = 5
MOST_CHARS = 64  # what is longer is no name: Base64, hashes in a row


def identifiers(folded: str) -> list[str]:
    """The tokens of the identifiers in a folded text, in order."""
    if not any(map(str.isdigit, folded)):
        return []
    found = [f"\u00a7{match[1]}" for match in _PARAGRAPH.finditer(folded)]
    found += (re.sub(r"\s", "", match[0]) for match in _ARTICLE.finditer(folded))
    for match in _NAME.finditer(_UNSPACED.sub(" ", folded)):
        name = match[0]
        alternatives = name.split("/")
        if len(alternatives) > 1 and all(map(_is_mixed, alternatives)):
            found += map(_token, alternatives)
        elif len(name) <= MOST_CHARS and _is_identifier(name):
            found.append(_token(name))
            if behind := _WORD_BEHIND.fullmatch(name):
                found.append(_token(behind[1]))
    return found


def _token(name: str) -> str:
    return _SIGNS.sub("", _BETWEEN.sub(SEPARATOR, _VERSION.sub("", name, count=1)))


def _is_mixed(name: str) -> bool:
    """Whether it has digits and letters."""
    return any(map(str.isdigit, name)) and any(map(str.isalpha, name))


def _is_identifier(name: str) -> bool:
    if not any(map(str.isdigit, name)):
        return False
    if name.isdigit():
        return len(name) >= LEAST_DIGITS or (name[0] == "0" and len(name) > 1)
    none = (_QUANTITY, _SHORT, _WITH_A_WORD)
    return not any(pattern.fullmatch(name) for pattern in none)
