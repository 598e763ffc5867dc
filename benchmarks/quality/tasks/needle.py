"""Needle in a haystack: one sentence in a long text, at every depth of every length.

The test is G. Kamradt's; prompt, grid and answer length are those of the papers on KV caches (KV
cache factory), without the `<|im_start|>` they put before every model's prompt. Sources count the
length of the text in tokens; so does this, but cuts at words, as it only knows `count`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.quality.sample import TextSample
from benchmarks.quality.tasks.essays import Haystack, built_in
from service.errors import InvalidRequest

LENGTHS = tuple(range(1000, 8001, 100))
DEPTHS = (0, 11, 22, 33, 44, 56, 67, 78, 89, 100)  # percent: ten of them, evenly
RESERVED = 200  # tokens of a length that are neither text nor needle: prompt and answer
ANSWER_TOKENS = 30


@dataclass(frozen=True)
class Needle:
    """What is hidden, and what is asked for. A small model may need words it knows."""

    text: str = (
        "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a "
        "sunny day."
    )
    question: str = "The best thing to do in San Francisco is: "


SANDWICH = Needle()


def tasks() -> tuple[str, ...]:
    return ("needle",)


def generate(
    *,
    count: Callable[[str], int],
    lengths: Sequence[int] = LENGTHS,
    depths: Sequence[int] = DEPTHS,
    needle: Needle = SANDWICH,
    haystack: Haystack | None = None,
    reserved: int = RESERVED,
) -> Iterator[TextSample]:
    """All depths of the first length, then of the next. `count` gives the tokens of a text; text
    and needle have at most `length - reserved`. `haystack`: by default the built-in text.

    Raises InvalidRequest: a length has no room for text, or a depth is not a percentage.
    """
    if not all(0 <= depth <= 100 for depth in depths):
        raise InvalidRequest("a depth is a percentage, from 0 to 100", field="depths")
    line = f"\n{needle.text}\n"
    taken = reserved + count(line)
    if short := [length for length in lengths if length <= taken]:
        raise InvalidRequest(
            f"no room for text in {short[0]} tokens: {taken} are reserved for needle, prompt and "
            "answer",
            field="lengths",
        )
    return _grid(count, lengths, depths, needle, haystack or built_in(), taken)


def _grid(
    count: Callable[[str], int],
    lengths: Sequence[int],
    depths: Sequence[int],
    needle: Needle,
    haystack: Haystack,
    taken: int,
) -> Iterator[TextSample]:
    number = 0
    for length in lengths:
        words = _words(count, haystack, length - taken)
        for depth in depths:
            yield TextSample(
                suite="needle",
                task="needle",
                number=number,
                instruction="This is a very long story book: <book> ",
                context=_hide(count, needle, haystack, words, depth),
                question=(
                    " </book>.\n Based on the content of the book, "
                    f"Question: {needle.question}\nAnswer:"
                ),
                references=(needle.text,),
                metric="rouge1",
                answer_tokens=ANSWER_TOKENS,
                stop=("\n",),
                chat=False,
                details={"depth": depth, "length": length, "haystack": haystack.name},
            )
            number += 1


def _words(count: Callable[[str], int], haystack: Haystack, tokens: int) -> int:
    """How many words of the text are at most that many tokens."""
    high = 1
    while count(haystack.prefix(high)) <= tokens:
        high *= 2
    return _within(count, haystack, tokens, high)


def _within(count: Callable[[str], int], haystack: Haystack, tokens: float, below: int) -> int:
    sizes = range(below)
    return max(0, bisect_right(sizes, tokens, key=lambda n: count(haystack.prefix(n))) - 1)


def _hide(
    count: Callable[[str], int], needle: Needle, haystack: Haystack, words: int, depth: int
) -> str:
    """At the depth, moved back to where a sentence ended; to the start where none did. At 100 % it
    is the end, within a sentence or not."""
    text = before = haystack.prefix(words)
    if depth < 100:
        words = _within(count, haystack, count(text) * depth / 100, words + 1)
        while (before := haystack.prefix(words)) and not before.endswith("."):
            words -= 1
    return f"{before}\n{needle.text}\n{text[len(before) :]}"
