"""The words of a text in a form in which two texts can be compared.

Case, accents and English endings do not count. Chinese, Japanese and Korean, which have no spaces,
are taken in pairs of characters. A number is one word, without its commas: 14,300 is 14300.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"\d[\d.,]*\d|[{_CJK}]+|[^\W{_CJK}]+")
_IS_CJK = re.compile(f"[{_CJK}]")
_COMMA_OF_THOUSANDS = re.compile(r",(?=\d{3}(?!\d))")
_ENDINGS = ("ies", "ing", "ed", "es", "s")
_SHORTEST_STEM = 3


def words(text: str) -> list[str]:
    """All words, in order."""
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


@lru_cache(65_536)
def _stem(word: str) -> str:
    """A word without accents and its ending; no linguistics: both texts lose the same."""
    decomposed = unicodedata.normalize("NFD", word)
    word = "".join(char for char in decomposed if not unicodedata.combining(char))
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            word = word.removesuffix(ending)
            break
    return word.removesuffix("e") if len(word) > _SHORTEST_STEM else word
