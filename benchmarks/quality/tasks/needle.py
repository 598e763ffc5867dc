"""Needle in a haystack: one sentence in a long text, at every depth of every length.

The test is G. Kamradt's. Prompt, grid and answer length are those of the papers on KV caches
(KVCache-Factory), without the `<|im_start|>` that they put before every model's prompt. Lengths are
in tokens as there, but the text is cut at words.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.quality.sample import TextSample
from benchmarks.quality.tasks.essays import Haystack, built_in
from service.errors import InvalidRequest

LENGTHS = tuple(range(1000, 8001, 100))
DEPTHS = (0, 11, 22, 33, 44, 56, 67, 78, 89, 100)  # in percent, ten evenly spaced ones
RESERVED = 200  # tokens of a length for prompt and answer, so neither text nor needle
ANSWER_TOKENS = 30


@dataclass(frozen=True)
class Needle:
    """The hidden sentence and the question. A small model may need words that it knows."""

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
    """Samples for all depths of the first length, then of the next.

    Args:
        count: number of tokens of a text.
        lengths: tokens of prompt and answer.
        depths: position of the needle, in percent.
        needle: what to hide.
        haystack: by default the built-in text.
        reserved: tokens of each length that are not for text and needle.

    Raises:
        InvalidRequest: a length has no room for text, or a depth is not a percentage.
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
    """The largest number of words of the text that are at most `tokens` tokens."""
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
    """The text with the needle at a depth, moved back to the end of a sentence or the start.

    At 100 % it is at the end, even within a sentence.
    """
    text = before = haystack.prefix(words)
    if depth < 100:
        words = _within(count, haystack, count(text) * depth / 100, words + 1)
        while (before := haystack.prefix(words)) and not before.endswith("."):
            words -= 1
    return f"{before}\n{needle.text}\n{text[len(before) :]}"
