"""Porter's stemmer with NLTK's default extensions, which `rouge_score` uses.

Words consist of a-z and 0-9; digits count as consonants. Comments with "NLTK" mark where it differs
from Porter (1980), An algorithm for suffix stripping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

# NLTK: words that the rules would spoil.
_IRREGULAR = {
    "skies": "sky", "sky": "sky", "dying": "die", "lying": "lie", "tying": "tie", "news": "news",
    "innings": "inning", "inning": "inning", "outings": "outing", "outing": "outing",
    "cannings": "canning", "canning": "canning", "howe": "howe",
    "proceed": "proceed", "exceed": "exceed", "succeed": "succeed",
}  # fmt: skip

# The first suffix that a word ends in counts; a longer one always comes before a shorter one.
_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize",
    "bli": "ble", "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate",
    "ator": "ate", "alism": "al", "iveness": "ive", "fulness": "ful", "ousness": "ous",
    "aliti": "al", "iviti": "ive", "biliti": "ble", "fulli": "ful",
}  # fmt: skip
_STEP_3 = {
    "icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": "",
}  # fmt: skip
_STEP_4 = dict.fromkeys(
    ["al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ou", "ism",
     "ate", "iti", "ous", "ive", "ize", "ion"], ""
)  # fmt: skip


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) <= 2:
        return word
    word = _y_to_i(_past_and_gerund(_plural(word)))
    word = _adjective(word)
    word = _replaced(word, _STEP_3, lambda rest: _measure(rest) > 0)
    return _tidied(_bare(word))


def _plural(word: str) -> str:
    """Step 1a; NLTK: "dies" becomes "die"."""
    if word.endswith("ies"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past_and_gerund(word: str) -> str:
    """Step 1b; NLTK: "died" becomes "die", "spied" "spi"."""
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        rest = word.removesuffix(suffix)
        if rest != word and "v" in _shape(rest):
            break
    else:
        return word
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if rest[-2:-1] == rest[-1] and _shape(rest)[-1] == "c":
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _ends_short(rest) else rest


def _y_to_i(word: str) -> str:
    """Step 1c; NLTK: after a consonant that is not the first letter."""
    rest = word.removesuffix("y")
    return rest + "i" if rest != word and len(rest) > 1 and _shape(rest)[-1] == "c" else word


def _adjective(word: str) -> str:
    """Step 2; NLTK: repeated after -alli, and the l of -logi belongs to the stem."""
    if word.endswith("alli"):
        return _adjective(word[:-2]) if _measure(word[:-4]) > 0 else word
    if word.endswith("logi"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    return _replaced(word, _STEP_2, lambda rest: _measure(rest) > 0)


def _bare(word: str) -> str:
    """Step 4; -ion is removed only after s and t."""
    if word.endswith("ion") and word[-4:-3] not in ("s", "t"):
        return word
    return _replaced(word, _STEP_4, lambda rest: _measure(rest) > 1)


def _tidied(word: str) -> str:
    """Steps 5a and 5b."""
    if word.endswith("e"):
        rest = word[:-1]
        if _measure(rest) > 1 or (_measure(rest) == 1 and not _ends_short(rest)):
            word = rest
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word


def _replaced(word: str, suffixes: Mapping[str, str], allowed: Callable[[str], bool]) -> str:
    for suffix, replacement in suffixes.items():
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            return rest + replacement if allowed(rest) else word
    return word


def _shape(word: str) -> str:
    """c for each consonant, v for each vowel; y is a vowel after a consonant."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape[-1:] == "c")
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """Porter's m: how often a consonant follows a vowel."""
    return _shape(word).count("vc")


def _ends_short(word: str) -> bool:
    """Porter's *o: ends in consonant, vowel, consonant other than w, x and y.

    NLTK: also a word of just a vowel and a consonant.
    """
    shape = _shape(word)
    return shape == "vc" or (shape.endswith("cvc") and word[-1] not in "wxy")
