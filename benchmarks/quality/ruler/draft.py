"""A sample of which only the size is open, and how the size is found."""

from __future__ import annotations

import random
import sys
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.quality.ruler.words import Words
from benchmarks.quality.tasks.essays import Haystack
from service.errors import InvalidRequest


@dataclass(frozen=True)
class Setting:
    """What all samples of a task share. `count` gives the tokens of a text; `data` is the folder
    of the question answering sets."""

    count: Callable[[str], int]
    length: int
    answer_tokens: int
    words: Words
    haystack: Haystack
    data: Path | None


@dataclass(frozen=True)
class Draft:
    """`context` builds the haystack of a size, in the task's own unit: lines, words, documents.
    The same size gives the same text; needles and answers do not depend on it."""

    instruction: str
    context: Callable[[int], str]
    question: str
    answer_prefix: str
    references: tuple[str, ...]
    smallest: int
    most: int = sys.maxsize
    haystack: str = ""  # whose text, where there is a choice

    def tokens(self, size: int, count: Callable[[str], int]) -> int:
        """Of the prompt, every part by itself, as the engine encodes them."""
        parts = self.instruction, self.context(size), self.question + self.answer_prefix
        return sum(map(count, parts))


Drafter = Callable[[int, random.Random], Draft]  # number of the sample, its random numbers


def fitting(draft: Draft, count: Callable[[str], int], budget: int) -> int:
    """The size whose prompt has at most `budget` tokens while the next one's has more, by binary
    search; `most` where all fit. Raises InvalidRequest: the smallest one does not fit."""

    def tokens(size: int) -> int:
        return draft.tokens(size, count)

    size = draft.smallest
    if (least := tokens(size)) > budget:
        raise InvalidRequest(
            f"the smallest prompt has {least} tokens, and {max(0, budget)} are left beside the "
            "answer's: ask for a greater length",
            field="length",
        )
    beyond = 2 * size
    while beyond <= draft.most and tokens(beyond) <= budget:
        size, beyond = beyond, 2 * beyond
    sizes = range(size + 1, min(beyond - 1, draft.most) + 1)
    return size + bisect_right(sizes, budget, key=tokens)
