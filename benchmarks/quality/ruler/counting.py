"""Common words (cwe) of a numbered list, and frequent words (fwe) of a coded text."""

from __future__ import annotations

import math
import random
import string
from functools import partial
from itertools import islice
from typing import NamedTuple

from benchmarks.quality.ruler.draft import Draft, Drafter, Setting
from benchmarks.quality.ruler.words import Words, distinct
from service.errors import InvalidRequest

COMMON = 10
_CWE_INSTRUCTION = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n"
)
_CWE_QUESTION = "\nQuestion: What are the 10 most common words in the above list?"
_CWE_ANSWER_PREFIX = " Answer: The top 10 words that appear most often in the list are:"
_FWE = (
    "Read the following coded text and track the frequency of each coded word. Find the three most "
    "frequently appeared coded words. ",
    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three "
    "most frequently appeared words in the above coded text?",
    " Answer: According to the coded text above, the three most frequently appeared words are:",
)
LETTERS = 6
# From this size on ranks 4 and 5 differ by at least one: n (1/16 - 1/25) / zeta(2) >= 1.
_FWE_SMALLEST = 74


class _Repeats(NamedTuple):
    common: int
    other: int


class _Sizes(NamedTuple):
    list: _Repeats
    example: _Repeats
    example_words: int


_LONG = _Sizes(_Repeats(30, 3), _Repeats(10, 3), 40)
_SHORT = _Sizes(_Repeats(6, 1), _Repeats(3, 1), 20)  # below 4,096 tokens


def prepare_cwe(setting: Setting) -> Drafter:
    """Makes drafts of cwe.

    Raises:
        InvalidRequest: there are not enough words.
    """
    sizes = _LONG if setting.length >= 4096 else _SHORT
    if len(setting.words.every) < sizes.example_words:
        raise InvalidRequest(
            f"cwe needs {sizes.example_words} words; there are {len(setting.words.every)}",
            field="words",
        )
    return partial(_cwe, setting.words, sizes)


def _cwe(words: Words, sizes: _Sizes, number: int, rng: random.Random) -> Draft:
    """A draft of cwe. Its size is the number of different words; after the last word come pairs."""
    shown = rng.sample(words.every, sizes.example_words)
    example = _numbered(_repeated(shown, sizes.example, rng.getrandbits(64)))
    drawn = rng.sample(words.every, len(words.every))
    common, order = drawn[:COMMON], rng.getrandbits(64)
    pairs = distinct(lambda: words.pair(rng))
    # Scores look for the answers anywhere in the text, so no pair may contain one.
    more = (pair for pair in pairs if not set(pair.split("-")) & set(common))
    head = (
        f"{example}{_CWE_QUESTION}{_CWE_ANSWER_PREFIX} {_numbered(shown[:COMMON])}\n"
        f"{_CWE_INSTRUCTION}"
    )

    def context(size: int) -> str:
        drawn.extend(islice(more, max(0, size - len(drawn))))
        return head + _numbered(_repeated(drawn[:size], sizes.list, order))

    spare = [len(set(kind) - set(common)) for kind in (words.adjectives, words.nouns)]
    return Draft(
        _CWE_INSTRUCTION,
        context,
        _CWE_QUESTION,
        _CWE_ANSWER_PREFIX,
        tuple(common),
        smallest=COMMON + 1,
        most=len(words.every) + math.prod(spare),
    )


def _repeated(words: list[str], repeats: _Repeats, order: int) -> list[str]:
    listed = words[:COMMON] * repeats.common + words[COMMON:] * repeats.other
    random.Random(order).shuffle(listed)
    return listed


def _numbered(words: list[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, 1))


def prepare_fwe(setting: Setting) -> Drafter:
    # The fifth code is the first that is not an answer; the official formula reaches five at 300.
    codes = max(5, (setting.length - setting.answer_tokens) // 50)
    return partial(_fwe, codes)


def _fwe(codes: int, number: int, rng: random.Random) -> Draft:
    """A draft of fwe. With size n the code of rank k occurs n / (zeta(2) k²) times; 1 is dots."""
    drawn = distinct(lambda: "".join(rng.choices(string.ascii_lowercase, k=LETTERS)))
    ranked = ["...", *islice(drawn, codes - 1)]
    order, zeta = rng.getrandbits(64), math.pi**2 / 6

    def context(size: int) -> str:
        text = [
            code for rank, code in enumerate(ranked, 1) for _ in range(int(size / (zeta * rank**2)))
        ]
        random.Random(order).shuffle(text)
        return " ".join(text)

    instruction, question, answer_prefix = _FWE
    return Draft(
        instruction, context, question, answer_prefix, tuple(ranked[1:4]), smallest=_FWE_SMALLEST
    )
